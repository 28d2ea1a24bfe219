# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs on two ranks: those of one process, and resumed after a signal.

A SIGTERM that one rank alone gets stops both.
"""

import os
import signal

import numpy as np
import paddle.distributed as dist
import pytest
from adagc_lab.train.processes import Stopped
from core.parallel.ranks import run_on_ranks
from helpers import long_but
from lab.train import runs

SMALL = (
    "clip.t_start=2",
    "schedule.warmup_steps=2",
    "train.max_steps=6",
    "train.save_every=3",
    "train.log_every=3",
    "train.visualdl=false",
    "record={tensors: false, moments: false}",
)
TEXT = (*SMALL, "data.validation_size=8", "model.num_hidden_layers=2")
MUON = "optimizer={name: muon, scaling: rms, beta2: 0.95, epsilon: 1e-8}"
EVEN = "model.intermediate_size=172"
LION = ("optimizer={name: lion, weight_decay: 0.1}",)
DP2, TP2 = "parallel.dp=2", "parallel.tp=2"
V1 = "parallel={dp: 1, sharding: 2, sharding_split_param: false}"
RECIPES = {
    "llama": ("llama2_1.3b/adagc", TP2, 8, (*TEXT, EVEN)),
    "muon": ("llama2_1.3b/adagc", V1, 4, (*TEXT, MUON)),
    "qwen3": ("qwen3_1.7b/adagc", TP2, 8, TEXT),
    "mixtral": ("mixtral_8x1b/adagc", V1, 4, TEXT),
    "ernie": ("ernie_moe", DP2, 4, TEXT),
    "lion": ("llama2_1.3b/adagc", DP2, 4, (*TEXT, *LION)),
    "clip": ("clip_lion", DP2, 4, SMALL),
}
"""Proxy -> config, layout of two ranks, samples of a rank, other values."""


def pretrain(values, stop_at=-1):
    """One process's part of a run; gives its status or exit status."""
    is_last = dist.get_rank() + 1 == dist.get_world_size()

    def signalled(loss):
        if is_last:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    with runs.losses_at(stop_at, signalled):
        try:
            return runs.pretrain(values)
        except Stopped as stopped:
            return stopped.exit_status


def values_of(name, output_dir, num_ranks):
    config, layout, size, other = RECIPES[name]
    alone = f"parallel={{dp: 1}} train.batch_size={size * 2}".split(" ")
    shared = [layout, f"train.batch_size={size if layout != TP2 else 2 * size}"]
    chosen = ["parallel={dp: 1}", alone[-1]] if num_ranks == 1 else shared
    return runs.proxy_values(
        config,
        output_dir,
        "train.gradient_accumulation_steps=1",
        *other,
        *chosen,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", long_but({*RECIPES} - {"llama", "lion"}, RECIPES)
)
def test_two_ranks_train_and_resume(name, tmp_path):
    """Stopped in the middle, they have the losses of one process."""
    values = values_of(name, tmp_path / "run", 2)
    assert run_on_ranks(pretrain, 2, values=values, stop_at=3) == [143, 143]
    assert (tmp_path / "run/checkpoint-4/complete.json").exists()
    assert run_on_ranks(pretrain, 2, values=values) == ["finished"] * 2
    found = runs.losses(tmp_path / "run")
    if name == "clip":  # each rank contrasts its own pairs
        values = values_of(name, tmp_path / "whole", 2)
        assert run_on_ranks(pretrain, 2, values=values) == ["finished"] * 2
        np.testing.assert_array_equal(found, runs.losses(tmp_path / "whole"))
    else:
        runs.pretrain(values_of(name, tmp_path / "alone", 1))
        alone = runs.losses(tmp_path / "alone")
        np.testing.assert_allclose(found, alone, rtol=1e-4)
