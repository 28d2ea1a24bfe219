# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says, as text of at most 40 lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_EVENTS = {
    "first step": "first",
    "last": "last",
    "kind": "kind",
    "tensors": "num_guilty",
    "loss": "loss",
    "norm": "norm",
    "norm left": "left",
}
_TENSORS = {
    "tensor": "key",
    "from step": "onset",
    "norm": "norm",
    "usual": "usual",
    "times usual": "ratio",
    "h": "h",
}
_CASES = {
    "what if": "case",
    "before: clipped share": "calm_clipped",
    "median h": "calm_h_median",
    "event: median h": "event_h_median",
    "lowest": "event_h_min",
}
_NUM_NOTES, _NUM_ROWS = 3, 5


def as_text(page: dict[str, Any]) -> str:
    """Return verdict, advice, events, tensors and what-if, fit to print."""
    return "\n".join(printable(line) for line in _lines(page))


def printable(text: str) -> str:
    """Show control characters, which a terminal would obey, as escapes."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in text
    )


def _lines(page: dict[str, Any]) -> Iterator[str]:
    yield f"{page['name']}: {page['verdict']['kind']}"
    yield from page["verdict"]["lines"]
    for action in page["actions"]:
        yield f"-> {action['text']}"
        if action["command"]:
            yield f"   {action['command']}"
    yield f"{page['num_tensors']} tensors, clip: {page['clip']}"
    if page["shadow"]:
        yield f"shadow, which changes nothing: {page['shadow']}"
    yield from page["notes"][:_NUM_NOTES]
    if page["events"]:
        yield from ["", *table(_EVENTS, page["events"][-_NUM_ROWS:])]
    event = None if page["worst"] is None else page["events"][page["worst"]]
    if event and event["guilty"]:
        yield from ["", *table(_TENSORS, event["guilty"][:_NUM_ROWS])]
    if found := page.get("what_if"):
        rows = found["rows"][: _NUM_ROWS + 1]
        yield from ["", *table(_CASES, rows), found["note"]]


def table(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return lines; the columns, named by their heads, show a row's values.

    Numbers have 3 digits; a dash stands for None.
    """
    cells = [
        [*columns],
        *([_cell(r[n]) for n in columns.values()] for r in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return digits(value)
    return "–" if value in (None, "") else str(value)


def digits(value: float) -> str:
    """Return a number with 3 digits; thousands without a power of ten."""
    is_large = 999.5 <= abs(value) < 1e6
    return f"{value:,.0f}" if is_large else f"{value:.3g}"


def counted(number: int, noun: str = "step") -> str:
    """Return a number and its noun, in the plural but for 1."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
