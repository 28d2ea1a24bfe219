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
from lab.train.runs import make_values, pretrain

NUM_STEPS = 60
LAYOUTS = {
    "one process": (1, {}),
    "V1": (2, {"sharding": 2, "sharding_split_param": False}),
}
"""What is killed -> number of ranks, section ``parallel``."""


def train(values):
    """One rank's part of a run, which may be stopped."""
    try:
        return pretrain(values)
    except Stopped as stopped:
        return stopped.exit_status


def kill(directory, number, rng, ranks):
    """Send a signal to a rank, once the run has made steps or in a save."""
    goal, in_save = rng.integers(2, NUM_STEPS - 6), rng.integers(2)

    def is_time():
        folders = directory.glob("checkpoint-*")
        saves = any(not (path / COMPLETE).exists() for path in folders)
        return num_steps(directory) >= goal and (saves or not in_save)

    while all(rank.is_alive() for rank in ranks) and not is_time():
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.02 if in_save else 0.1))
    rank = ranks[rng.integers(len(ranks))]
    if rank.is_alive():
        os.kill(rank.pid, number)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_run_resumes(layout, tmp_path):
    """Signals to a run; it resumes after each, and ends."""
    rng = np.random.default_rng([*LAYOUTS].index(layout))
    num_ranks, parallel = LAYOUTS[layout]
    values = make_values("", max_steps=NUM_STEPS, save_every=2)
    values |= {"parallel": parallel, "record": {"tensors": num_ranks == 1}}

    def run(directory, meanwhile=None):
        values["train"]["output_dir"] = str(directory)
        return run_on_ranks(
            train, num_ranks, meanwhile=meanwhile, values=values
        )

    folders = whole, killed = tmp_path / "whole", tmp_path / "killed"
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(RuntimeError):
            run(killed, functools.partial(kill, killed, number, rng))
    assert run(whole) == run(killed) == ["finished"] * num_ranks
    expected, found = (RunRecord.load(folder).loss for folder in folders)
    np.testing.assert_array_equal(found, expected)
