# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of Pythons and Paddles, and the ranges that follow from it."""

import re

from pages import ROOT, load_tool

tool = load_tool("check_versions")


def passed(what):
    """Versions with a passing cell and none that failed, in order."""
    cells = {(r["python"], r["paddle"]): r for r in tool.read_records()}
    good = {r[what] for r in cells.values() if tool.is_passed(r)}
    bad = {r[what] for r in cells.values() if not tool.is_passed(r)}
    if what == "python":
        return [v for v in tool.PYTHONS if v in good]
    return [v for v in tool.PADDLES if v in good - bad]


def test_page_has_the_table_of_the_records():
    page = (ROOT / "docs" / "versions.md").read_text("utf-8")
    assert tool.table(tool.read_records()) in page


def test_ranges_of_the_package_are_those_of_the_table():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    paddles, pythons = passed("paddle"), passed("python")
    found = re.findall(r"paddlepaddle(?:-gpu)?([^\"\n]+)\"", text)
    assert found == [f">={paddles[0]},<={paddles[-1]}"] * 2
    assert re.search(r"requires-python = \">=([\d.]+)\"", text)[1] == pythons[0]
    assert re.findall(r"Python :: (3\.\d+)\"", text) == pythons


def test_a_pair_in_which_nothing_passed_has_a_cell():
    row = {"python": "3.11", "paddle": tool.PADDLES[0], "failed": 2}
    assert "0 passed, 2 failed" in tool.table([row])
