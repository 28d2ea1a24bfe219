# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numerical matrix: cells of a short training, and what is said of them."""

import math

import pytest

from paddle_adagc.lab.soak import cells
from paddle_adagc.lab.soak.cell_table import cells_text
from paddle_adagc.lab.soak.runs import Trial
from paddle_adagc.lab.soak.step_faults import CONTROL, FAULTS, StepFault


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(cells, "NUM_STEPS", 24)
    monkeypatch.setattr(cells, "STEPS_AFTER", 12)
    phases = {"first step": 0, "adaptive phase": 10}
    monkeypatch.setattr(cells, "PHASES", phases)
    for clip in cells.CLIPS.values():
        if "t_start" in clip:
            monkeypatch.setitem(clip, "t_start", 6)


def test_there_are_24_faults_of_their_own():
    assert len({fault.name for fault in FAULTS}) == 24
    assert len({str((f.config(3), f)) for f in (*FAULTS, CONTROL)}) == 25


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("clip", cells.CLIPS)
def test_a_restored_training_goes_on_bit_by_bit(clip):
    training = cells.Training(cells.CLIPS[clip], seed=3)
    losses, states = training.whole()
    nothing = {"area": 0.0, "excess": 0.0, "recovery": 0}
    for step in (0, 10):
        training.restore(states[step])
        found = training.damage(StepFault("none"), step, losses)
        assert found == nothing


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_changes_the_training(fault):
    """A clip may undo a fault: one that clips less does not."""
    found = []
    for lambda_abs in (1.0, 1e6):
        clip = {**cells.CLIPS["GlobalGC"], "lambda_abs": lambda_abs}
        training = cells.Training(clip, seed=0)
        losses, states = training.whole()
        training.restore(states[10])
        found.append(training.damage(fault, 10, losses)["area"])
    assert found != [0.0, 0.0]
    if "NaN" in fault.name:
        assert found == [None, None]


def cell(fault, clip, seed, area):
    is_finite = area is not None and math.isfinite(area)
    outcome = "recovered" if is_finite else "not finite"
    values = {"phase": "decay", "clip": clip, "seed": seed, "area": area}
    return Trial("cells", fault, outcome, values=values)


def test_the_page_says_where_adagc_is_worse():
    areas = {
        "a": ([1.0, 2.0, 3.0], [2.5, 3.5, 4.5]),
        "b": ([9.0, 9.0, 9.0], [1.0, 1.0, 1.0]),
        "c": ([1.0, 2.0, 3.0], [1.0, 5.0, 6.0]),
        "d": ([None] * 3, [0.5] * 3),
        "no fault": ([0.0] * 3, [50.0] * 3),
    }
    trials = [
        cell(fault, clip, seed, area)
        for fault, pair in areas.items()
        for clip, found in zip(("GlobalGC", "AdaGC"), pair, strict=True)
        for seed, area in enumerate(found)
    ]
    text = cells_text(trials)
    rows = [line.split(" | ") for line in text.splitlines() if "|" in line]
    faults = [row[0].lstrip("| ") for row in rows]
    assert faults[2:7] == ["d", "no fault", "b", "c", "a"]
    assert "| d | not finite (3 of 3) | 0.5 |" in text
    assert "Of 4 pairs" in text
    assert "in 2, and more in 1" in text
    assert text.splitlines()[-1] == "| a | decay | 2.0 | 3.5 |"
    assert cells_text([]) == ""
