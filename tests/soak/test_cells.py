# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/soak_cells.py``: cells of a short training, and their tables."""

import importlib.util
import json

import pytest
from soak.trials import PAGE, RESULTS, ROOT

_SPEC = importlib.util.spec_from_file_location(
    "soak_cells", ROOT / "tools/soak_cells.py"
)
cells = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(cells)
NOTHING = {"kind": "learning_rate", "magnitude": 1.0}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(cells, "NUM_STEPS", 24)
    monkeypatch.setattr(cells, "STEPS_AFTER", 12)
    phases = {"first step": 0, "adaptive phase": 10}
    monkeypatch.setattr(cells, "PHASES", phases)
    for clip in cells.CLIPS.values():
        if "t_start" in clip:
            monkeypatch.setitem(clip, "t_start", 6)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("clip", cells.CLIPS)
def test_a_restored_training_goes_on_bit_by_bit(clip):
    training = cells.Training(cells.CLIPS[clip], seed=3)
    for step in (0, 10):
        found = training.damage(NOTHING, step)
        assert found == {"area": 0.0, "excess": 0.0, "recovery": 0}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", [*cells.FAULTS][:24])
def test_every_fault_changes_the_training(fault):
    """A clip may undo a fault: one that clips less does not."""
    found = []
    for lambda_abs in (1.0, 1e6):
        clip = {**cells.CLIPS["GlobalGC"], "lambda_abs": lambda_abs}
        training = cells.Training(clip, seed=0)
        found.append(training.damage(cells.FAULTS[fault], 10)["area"])
    assert found != [0.0, 0.0]
    if "NaN" in fault:
        assert found == [None, None]


def test_the_page_says_where_adagc_is_worse():
    areas = {
        "a": ([1.0, 2.0, 3.0], [2.5, 3.5, 4.5]),
        "b": ([9.0, 9.0, 9.0], [1.0, 1.0, 1.0]),
        "c": ([1.0, 2.0, 3.0], [1.0, 5.0, 6.0]),
        "d": ([None] * 3, [0.5] * 3),
        "no fault": ([0.0] * 3, [50.0] * 3),
    }
    lines = [
        {
            "kind": "cells",
            "case": fault,
            "outcome": "not finite" if area is None else "recovered",
            "values": {"phase": "decay", "clip": clip, "area": area},
        }
        for fault, pair in areas.items()
        for clip, found in zip(("GlobalGC", "AdaGC"), pair, strict=True)
        for area in found
    ]
    marks = "before<!-- soak cells --><!-- end -->"
    text = cells.page(marks, [*lines, {"kind": "kills"}])
    rows = [line.split(" | ") for line in text.splitlines() if "|" in line]
    faults = [row[0].lstrip("| ") for row in rows]
    assert faults[2:7] == ["d", "no fault", "b", "c", "a"]
    assert "| d | not finite (3 of 3) | 0.5 |" in text
    assert "Of 4 pairs" in text
    assert "in 2, and more in 1" in text
    last = "| a | decay | 2.0 | 3.5 |"
    assert text.splitlines()[-3:] == [last, "", "<!-- end -->"]


def test_the_page_is_made_of_the_results():
    text = PAGE.read_text("utf-8")
    lines = RESULTS.read_text("utf-8").splitlines()
    assert cells.page(text, map(json.loads, lines)) == text
