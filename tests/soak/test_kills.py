# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kills: a run's processes get a signal at random moments until it ends.

The record of the run that ends is that of an uninterrupted one, bit for bit.
"""

import contextlib
import functools
import os
import signal

import numpy as np
import pytest
from adagc_lab.record.files import RunRecord
from core.parallel.ranks import run_on_ranks
from soak import runs

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NUM_STEPS = 60


def spread(**parallel):
    """A layout on two ranks; tensors and moments are not recorded there."""
    record = {"tensors": False, "moments": False}
    return 2, {"parallel": parallel, "record": record}


LAYOUTS = {
    "one process": (1, {}),
    "DP2": spread(dp=2),
    "TP2": spread(tp=2),
    "V1": spread(sharding=2, sharding_split_param=False),
}
"""What is killed -> number of ranks, sections of the config."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_run_resumes(layout, tmp_path):
    """Three signals to each run; it resumes after each, and ends."""
    rng = np.random.default_rng([*LAYOUTS].index(layout))
    num_ranks, sections = LAYOUTS[layout]
    prefix = runs.prepare_text(tmp_path / "text")
    file = tmp_path / "run.yaml"

    def kill(directory, goal, kind, ranks):
        # Every second time in a save, on average.
        runs.wait_for_moment(ranks, directory, goal, rng.integers(2), rng)
        rank = ranks[rng.integers(num_ranks)]
        if rank.is_alive():
            os.kill(rank.pid, kind)

    def train(directory, meanwhile=None):
        length = {"max_steps": NUM_STEPS, "save_every": 2}
        runs.write_config(file, directory, prefix, sections, **length)
        return run_on_ranks(
            runs.command, num_ranks, meanwhile=meanwhile, config_file=file
        )

    whole, ended = tmp_path / "whole", [0] * num_ranks
    assert train(whole) == ended
    for number in range(runs.REPEAT):
        directory = tmp_path / f"run{number}"
        goals = sorted(rng.integers(2, NUM_STEPS - 6, len(SIGNALS)))
        for i, goal in enumerate(goals):
            kind = SIGNALS[(number + i) % len(SIGNALS)]
            with contextlib.suppress(RuntimeError):
                train(directory, functools.partial(kill, directory, goal, kind))
        assert train(directory) == ended
        record = RunRecord.load(directory)
        assert runs.is_same(record, RunRecord.load(whole))
