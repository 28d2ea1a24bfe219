# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kills: a run's processes get a signal at random moments until it ends.

The record of the run that ends is that of an uninterrupted one, bit for bit.
"""

import contextlib
import functools
import os
import signal
import time

import numpy as np
import pytest
from adagc_lab.record.files import RunRecord, num_steps
from adagc_lab.train.checkpoints import COMPLETE
from adagc_lab.train.processes import Stopped
from core.parallel.ranks import run_on_ranks
from lab.train.runs import assert_same, make_values, pretrain

REPEAT = int(os.environ.get("SOAK_REPEAT", "1"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NUM_STEPS = 60
LAYOUTS = {
    "one process": (1, {}),
    "DP2": (2, {"dp": 2}),
    "TP2": (2, {"tp": 2}),
    "V1": (2, {"sharding": 2, "sharding_split_param": False}),
}
"""What is killed -> number of ranks, section ``parallel``."""


def train(values):
    """One rank's part of a run, which may be stopped."""
    try:
        return pretrain(values)
    except Stopped as stopped:
        return stopped.exit_status


def kill(directory, goal, number, in_save, rng, ranks):
    """Send a signal to a rank, once the run has made steps or in a save."""

    def has_come():
        return num_steps(directory) >= goal

    def is_saving():
        folders = directory.glob("checkpoint-*")
        return any(not (path / COMPLETE).exists() for path in folders)

    for is_so in (has_come, is_saving) if in_save else (has_come,):
        while all(rank.is_alive() for rank in ranks) and not is_so():
            time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.02 if in_save else 0.1))
    rank = ranks[rng.integers(len(ranks))]
    if rank.is_alive():
        os.kill(rank.pid, number)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_run_resumes(layout, tmp_path):
    """Three signals to each run; it resumes after each, and ends."""
    rng = np.random.default_rng([*LAYOUTS].index(layout))
    num_ranks, parallel = LAYOUTS[layout]
    values = make_values("", max_steps=NUM_STEPS, save_every=2)
    values |= {"parallel": parallel, "record": {"tensors": num_ranks == 1}}

    def run(directory, meanwhile=None):
        values["train"]["output_dir"] = str(directory)
        return run_on_ranks(
            train, num_ranks, meanwhile=meanwhile, values=values
        )

    ended = ["finished"] * num_ranks
    assert run(tmp_path / "whole") == ended
    for number in range(REPEAT):
        directory = tmp_path / f"run{number}"
        goals = sorted(rng.integers(2, NUM_STEPS - 6, len(SIGNALS)))
        for i, goal in enumerate(goals):
            kind = SIGNALS[(number + i) % len(SIGNALS)]
            with contextlib.suppress(RuntimeError):
                in_save = rng.integers(2)
                how = (directory, goal, kind, in_save, rng)
                run(directory, functools.partial(kill, *how))
        assert run(directory) == ended
        whole, found = map(RunRecord.load, (tmp_path / "whole", directory))
        np.testing.assert_array_equal(whole.loss, found.loss)
        if num_ranks == 1:
            assert_same(whole, found)
