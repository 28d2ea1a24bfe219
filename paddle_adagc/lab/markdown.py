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
    rows = [
        " | ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(
                zip(line, widths, strict=True)
            )
        )
        for line in lines
    ]
    marks = [
        "-" * max(3, width + 2)
        if column < left
        else "-" * max(3, width + 1) + ":"
        for column, width in enumerate(widths)
    ]
    head_line, *row_lines = (f"| {row} |\n" for row in rows)
    return "".join([head_line, f"|{'|'.join(marks)}|\n", *row_lines])
