# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page of parallel layouts names tests and counts that exist."""

import importlib
import re

import pytest
from pages import ROOT

from paddle_adagc.lab.benchmark.collectives import LAYOUTS, OTHER_LAYOUTS

PAGE = ROOT / "docs/parallelism.md"
_NAMED = re.compile(r"`(test_\w+)\.py(?:::(test_\w+)|\[([^]`]+)\])`")


def tables():
    """Rows of the page's tables, by the first header."""
    found = {}
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text("utf-8"), re.M):
        header, _, *lines = (
            [cell.strip() for cell in line.strip("|\n").split("|")]
            for line in block.splitlines()
        )
        found.setdefault(header[0], []).extend(lines)
    return found


def cases(module):
    """Names of all cases of a module's parametrized tests."""
    marks = [
        mark
        for name, function in vars(module).items()
        if name.startswith("test_")
        for mark in getattr(function, "pytestmark", [])
        if mark.name == "parametrize"
    ]
    return {
        str(name)
        for mark in marks
        for name in mark.kwargs.get("ids") or map(_value, mark.args[1])
    }


def _value(case):
    return case.values[0] if hasattr(case, "values") else case


def test_named_tests_exist():
    named = _NAMED.findall(PAGE.read_text("utf-8"))
    assert len(named) > 50
    for file, function, case in named:
        module = importlib.import_module(f"core.parallel.{file}")
        if function:
            assert callable(getattr(module, function, None)), (file, function)
        else:
            assert case in cases(module), (file, case)


def test_what_works_names_a_test():
    for way, status, tests, _ in tables()["way"]:
        if status.startswith(("works", "refused", "made", "simulated")):
            assert "test_" in tests, way


@pytest.mark.parametrize("name", [*LAYOUTS, *OTHER_LAYOUTS])
def test_every_count_is_shown_and_used(name):
    ways = tables()["way"]
    assert any(name in row[3].split(", ") for row in ways)
    assert name in {row[0] for row in tables()["layout"]}
