# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Markdown tables: the one helper that writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    left: int = 1,
    pad: bool = False,
) -> str:
    """Write a pipe table; its lines end with a line feed.

    The first ``left`` columns are aligned left, the others right; a ``|`` in a
    cell is escaped. With ``pad`` the columns line up in a terminal, too.
    """
    lines = [
        [str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)
    ]
    for line in lines:
        if len(line) != len(head):
            raise ValueError(f"{line} has not the {len(head)} cells of {head}")
    columns = zip(*lines, strict=True)
    widths = [max(2, *map(len, column)) if pad else 0 for column in columns]
    marks = [
        "-" * max(3, width + 2) if i < left else "-" * max(3, width + 1) + ":"
        for i, width in enumerate(widths)
    ]
    sides = [str.ljust if i < left else str.rjust for i in range(len(head))]
    aligned = (
        [f(cell, w) for f, cell, w in zip(sides, line, widths, strict=True)]
        for line in lines
    )
    head_line, *row_lines = (f"| {' | '.join(row)} |\n" for row in aligned)
    return "".join([head_line, f"|{'|'.join(marks)}|\n", *row_lines])
