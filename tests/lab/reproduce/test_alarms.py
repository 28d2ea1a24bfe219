# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""False alarms on the committed losses, and jumps that are seen."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from paddle_adagc.lab.reproduce import alarms
from paddle_adagc.lab.reproduce.alarms import (
    count_alarms,
    main,
    quiet_losses,
    share_seen,
)
from paddle_adagc.stability import WATCHES

RESULTS = Path(__file__).parents[3] / "results/ernie.jsonl"


def test_false_alarms_are_rare_on_committed_losses():
    series = quiet_losses(RESULTS, "recipe")
    assert len(series) >= 6
    sigma = WATCHES["loss"].sigma
    alarms = sum(len(count_alarms(losses, sigma)) for losses in series)
    assert alarms <= sum(map(len, series)) / 20_000


def test_a_jump_of_many_deviations_is_seen_and_a_small_one_is_not():
    losses = np.random.default_rng(0).normal(3.0, 0.05, 1000)
    assert share_seen(losses, 8.0, 1.0) == 1.0
    assert share_seen(losses, 8.0, 0.1) == 0.0
    assert dataclasses.asdict(WATCHES["loss"])["least"] == 0.1


@pytest.mark.slow
def test_command(capsys, monkeypatch):
    monkeypatch.setattr(alarms, "JUMPS", (2.0,))
    monkeypatch.setattr(alarms, "SIGMAS", (8.0, 15.0))
    main([str(RESULTS), "recipe"])
    head, *_, last = capsys.readouterr().out.strip().splitlines()
    assert "runs, " in head
    assert last.startswith("| 15 | 0 |")
