# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An analysis as text of at most 40 lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NUM_EVENTS, _NUM_GUILTY = 5, 6


def as_text(page: dict[str, Any]) -> str:
    """Return the verdict, events, guilty tensors, what-if and what to do."""
    return "\n".join(_lines(page))


def _lines(page: dict[str, Any]) -> Iterator[str]:
    yield f"{page['name']}: {page['verdict']['text']}"
    yield (
        f"steps {page['first_step']} to {page['last_step']}, "
        f"{page['num_tensors']} tensors, sessions: {page['num_sessions']}"
    )
    yield f"clip: {page['clip']}"
    if page["shadow"]:
        yield f"shadow: {page['shadow']}"
    yield from (f"note: {note}" for note in page["notes"][:3])
    if page["events"]:
        yield ""
        yield from _table(
            ["event", "cause", "loss", "usual", "norm", "after the clip"],
            [
                [_span(e), e["kind"], *_numbers(e, "loss usual_loss norm")]
                + (
                    ["not made"]
                    if e["skipped"]
                    else _numbers(e, "clipped_norm")
                )
                for e in page["events"][-_NUM_EVENTS:]
            ],
        )
    event = None if page["worst"] is None else page["events"][page["worst"]]
    if event and event["guilty"]:
        yield ""
        yield from _table(
            [
                *("tensor", "onset", "norm", "usual", "x usual"),
                f"h of {page['recorded']}",
            ],
            [
                [g["key"], str(g["onset"]), *_numbers(g, "norm usual ratio h")]
                for g in event["guilty"][:_NUM_GUILTY]
            ],
        )
    found = page.get("what_if", {})
    if "note" in found:
        yield from ("", f"what if: {found['note']}")
    if rows := found.get("rows"):
        yield ""
        yield from _table(
            ["what if", "calm: clipped", "median h", "event: median h", "min"],
            [
                [
                    *(row["case"], percent(row["calm_clipped"])),
                    *_numbers(row, "calm_h_median event_h_median event_h_min"),
                ]
                for row in rows[:6]
            ],
        )
        yield from (
            f"calm, {rows[0]['case']}: clips {row['clipped']:.0%} of "
            f"{row['tensors']} ({row['number']} tensors)"
            for row in found["most_clipped"]
        )
    if early := found.get("early"):
        yield (
            f"AdaGC as in the paper, steps {early['first_step']} to "
            f"{early['last_step']}: clips {early['clipped']:.0%}"
        )
    if page["actions"]:
        yield ""
    for action in page["actions"]:
        yield f"{action['title']}: {action['text']}"


def _span(event: dict[str, Any]) -> str:
    last = f" to {event['end']}" if event["end"] > event["start"] else ""
    return f"{event['start']}{last}"


def _numbers(of: Mapping[str, Any], names: str) -> list[str]:
    return [number(of[name]) for name in names.split()]


def number(value: float | None) -> str:
    """Return a number with 3 digits; a dash for None."""
    return "–" if value is None else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Return a share in percent; a dash for None."""
    return "–" if share is None else f"{share:.0%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
