# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Markdown helper: alignment, escapes, columns that line up."""

import pytest
from adagc_lab.markdown import markdown_table


def test_cells_are_aligned_and_escaped():
    table = markdown_table(["", "nat"], [("a|b", 1.5), ("c", "–")])
    assert table == "|  | nat |\n|---|---:|\n| a\\|b | 1.5 |\n| c | – |\n"


def test_padded_columns_line_up():
    table = markdown_table(
        ["stage", "GiB"], [("0", "12.25"), ("10", "3")], pad=True
    )
    assert table.splitlines() == [
        "| stage |   GiB |",
        "|-------|------:|",
        "| 0     | 12.25 |",
        "| 10    |     3 |",
    ]


def test_a_short_row_is_refused():
    with pytest.raises(ValueError, match=r"\['a'\] has not the 2 cells"):
        markdown_table(["x", "y"], [["a"]])
