# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of Pythons and Paddles, and the ranges that follow from it."""

import re

import pytest
from pages import ROOT, load_tool


@pytest.fixture(scope="module")
def tool():
    return load_tool("check_versions")


def passed(tool, what):
    """Versions with a passing cell and none that failed, in order."""
    cells = {(r["python"], r["paddle"]): r for r in tool.read_records()}
    good = {r[what] for r in cells.values() if tool.is_passed(r)}
    bad = {r[what] for r in cells.values() if not tool.is_passed(r)}
    every = tool.PADDLES if what == "paddle" else tool.PYTHONS
    return [v for v in every if v in (good - bad if what == "paddle" else good)]


def test_page_has_the_table_of_the_records(tool):
    page = (ROOT / "docs" / "versions.md").read_text("utf-8")
    assert tool.table(tool.read_records()) in page


def test_ranges_of_the_package_are_those_of_the_table(tool):
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    paddles = passed(tool, "paddle")
    expected = f">={paddles[0]},<={paddles[-1]}"
    assert (
        re.findall(r"paddlepaddle(?:-gpu)?([^\"\n]+)\"", text) == [expected] * 2
    )
    pythons = passed(tool, "python")
    assert re.search(r"requires-python = \">=([\d.]+)\"", text)[1] == pythons[0]
    named = re.findall(r"Python :: (3\.\d+)\"", text)
    assert named == pythons
