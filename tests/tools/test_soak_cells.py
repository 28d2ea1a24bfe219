# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/soak_cells.py`` on a short training."""

import pytest
from pages import load_tool

cells = load_tool("soak_cells")
NOTHING = {"kind": "learning_rate", "magnitude": 1.0}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(cells, "NUM_STEPS", 24)
    monkeypatch.setattr(cells, "STEPS_AFTER", 12)
    phases = {"first step": 0, "adaptive phase": 10}
    monkeypatch.setattr(cells, "PHASES", phases)


@pytest.mark.parametrize("clip", ["GlobalGC", "AdaGC"])
def test_a_restored_training_goes_on_bit_by_bit(clip):
    arguments = {"t_start": 6} if clip == "AdaGC" else {}
    training = cells.Training(cells.CLIPS[clip] | arguments, seed=3)
    for step in (0, 10):
        found = training.damage(NOTHING, step)
        assert found == {"area": 0.0, "excess": 0.0, "recovery": 0}


def test_every_fault_changes_the_training():
    """A clip may undo a fault: one that clips less does not."""
    found = {}
    for lambda_abs in (1.0, 1e6):
        clip = cells.CLIPS["GlobalGC"] | {"lambda_abs": lambda_abs}
        training = cells.Training(clip, seed=0)
        for fault in cells.FAULTS.keys() - {cells.CONTROL}:
            area = training.damage(cells.FAULTS[fault], 10)["area"]
            found.setdefault(fault, []).append(area)
    for fault, areas in found.items():
        assert areas != [0.0, 0.0], fault
        assert "NaN" not in fault or areas == [None, None]
