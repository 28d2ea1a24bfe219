# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The Markdown helper: alignment, escapes, columns that line up."""

import pytest

from paddle_adagc.lab.markdown import markdown_table


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
