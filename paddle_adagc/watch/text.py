# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a record says, as text of at most 40 lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NUM_EVENTS, _NUM_GUILTY, _NUM_CASES = 5, 6, 6


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
    yield f"{page['name']}: {page['verdict']['text']}"
    for action in page["actions"]:
        yield f"-> {action['title']}: {action['text']}"
    yield (
        f"steps {page['first_step']} to {page['last_step']}, "
        f"{page['num_tensors']} tensors, sessions: {page['num_sessions']}"
    )
    yield f"clip: {page['clip']}"
    if page["shadow"]:
        yield f"shadow: {page['shadow']}"
    yield from (f"note: {note}" for note in page["notes"][:5])
    if page["events"]:
        yield ""
        yield from table(
            ["event", "kind", "cause", "loss", "usual", "norm", "left"],
            [
                [
                    *(span(e), e["kind"], e["cause"] or "–"),
                    *_numbers(e, "loss usual_loss norm left"),
                ]
                for e in page["events"][-_NUM_EVENTS:]
            ],
        )
    event = None if page["worst"] is None else page["events"][page["worst"]]
    if event and event["guilty"]:
        yield ""
        yield from table(
            [
                *("tensor", "onset", "norm", "usual", "x usual"),
                f"h of {page['recorded']}",
            ],
            [
                [g["key"], str(g["onset"]), *_numbers(g, "norm usual ratio h")]
                for g in event["guilty"][:_NUM_GUILTY]
            ],
        )
    if found := page.get("what_if"):
        yield ""
        yield from what_if_table(found["rows"][:_NUM_CASES])
        yield found["note"]


def what_if_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a what-if's table."""
    return table(
        ["what if", "calm: clipped", "median h", "event: median h", "min"],
        [
            [
                *(row["case"], percent(row["calm_clipped"])),
                *_numbers(row, "calm_h_median event_h_median event_h_min"),
            ]
            for row in rows
        ],
    )


def span(event: Mapping[str, Any]) -> str:
    """Return the steps of an event."""
    last = f" to {event['last']}" if event["last"] > event["first"] else ""
    return f"{event['first']}{last}"


def _numbers(of: Mapping[str, Any], names: str) -> list[str]:
    return [number(of[name]) for name in names.split()]


def number(value: float | None) -> str:
    """Return a number with 3 digits; a dash for None."""
    return "–" if value is None else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Return a share in percent; a dash for None."""
    return "–" if share is None else f"{share:.0%}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns, the first one flush left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
