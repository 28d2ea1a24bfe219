# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One run that changes its layout at every stop has the losses of one process.

Every stop is a SIGTERM that one rank alone gets.
"""

import functools
import os
import shutil
import signal
from unittest import mock

import numpy as np
import paddle.distributed as dist
import pytest
from adagc_lab.evaluate.saved import load_saved, to_hf
from adagc_lab.record.files import read_run_json, update_run_json
from adagc_lab.train.processes import Stopped
from adagc_lab.train.trainer import PretrainTrainer
from core.parallel.ranks import run_on_ranks
from lab.train import runs
from lab.train.runs import losses, small_ernie, start

from paddle_adagc.state import load_state

NUM_STEPS = 10
SMALL = (
    "data.validation_size=16",
    "clip.t_start=3",
    f"train.max_steps={NUM_STEPS}",
    "train.gradient_accumulation_steps=2",
    "train.log_every=5",
    "train.save_every=5",
    "train.keep_checkpoints=2",
    # Different loads move the biases, which are buffers, at every step.
    "model.moe_correction_bias=true",
    "train.expert_bias_rate=0.01",
)
ALONE = (1, "train.batch_size=8")
TP2_PP2 = (4, "train.batch_size=8", "parallel.tp=2", "parallel.pp=2")
PP2_V2 = (4, "train.batch_size=4", "parallel.pp=2", "parallel.sharding=2")
EP2_V2 = (4, "train.batch_size=2", "parallel.ep=2", "parallel.sharding=4")
TP2_EP2 = (2, "train.batch_size=8", "parallel.tp=2", "parallel.ep=2")
SHARDED = ("train.batch_size=4", "parallel.sharding=2")
TP2_EP2_V2 = (4, *SHARDED, "parallel.tp=2", "parallel.ep=2")
PP2_EP2 = (*PP2_V2, "parallel.ep=2")
EP2 = (2, *SHARDED, "parallel.ep=2")
DP2 = (2, "train.batch_size=4", "parallel.dp=2")
V1 = (2, *SHARDED, "parallel.sharding_split_param=false")


def pretrain(values, stop_at=None):
    """One process's part of a run; gives its status or exit status."""
    is_last = dist.get_rank() + 1 == dist.get_world_size()
    training_step = PretrainTrainer.training_step

    @functools.wraps(training_step)  # the Trainer looks at its signature
    def signalled(self, *args, **kwargs):
        if is_last and self.state.global_step + 1 == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(self, *args, **kwargs)

    with mock.patch.object(PretrainTrainer, "training_step", signalled):
        try:
            return runs.pretrain(values)
        except Stopped as stopped:
            return stopped.exit_status


def run(output_dir, layout, stop_at=None):
    num_ranks, *overrides = layout
    arguments = {
        "values": small_ernie(output_dir, *SMALL, *overrides),
        "stop_at": stop_at,
    }
    if num_ranks == 1:
        statuses = [pretrain(**arguments)]
    else:
        statuses = run_on_ranks(pretrain, num_ranks, timeout=300.0, **arguments)
    assert statuses == [143 if stop_at else "finished"] * num_ranks


def cut_back(source, target):
    """A copy of a run that was killed after the step 5."""
    shutil.copytree(source, target)
    shutil.rmtree(target / "checkpoint-10")
    update_run_json(target, status="running")
    return target


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("alone") / "run"
    run(output_dir, ALONE)
    return output_dir


def assert_close(output_dir, alone):
    np.testing.assert_allclose(losses(output_dir), losses(alone), rtol=1e-5)
    mine, theirs = (
        load_state(path / f"checkpoint-{NUM_STEPS}")
        for path in (output_dir, alone)
    )
    assert mine["gamma"] == pytest.approx(theirs["gamma"], rel=1e-4)
    expected = load_saved(alone).state
    for name, weight in load_saved(output_dir).state.items():
        np.testing.assert_allclose(
            weight, expected[name], rtol=0, atol=1e-5, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("layouts", "stops"),
    [
        (
            [ALONE, TP2_PP2, PP2_V2, DP2, EP2_V2, PP2_EP2, V1],
            [2, 3, 4, 5, 6, 7, None],
        ),
        ([TP2_EP2, TP2_EP2_V2, EP2, TP2_EP2_V2, ALONE], [2, 4, 6, 8, None]),
    ],
    ids=["all", "experts with tensor parallelism"],
)
def test_a_run_moves_from_layout_to_layout(layouts, stops, alone, tmp_path):
    output_dir = tmp_path / "run"
    for layout, stop_at in zip(layouts, stops, strict=True):
        run(output_dir, layout, stop_at)
    assert_close(output_dir, alone)


@pytest.mark.slow
def test_launched_under_tp2_x_pp2(alone, tmp_path):
    output_dir = tmp_path / "run"
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node=4"]
    launch.append(f"--log_dir={tmp_path / 'log'}")
    values = small_ernie(output_dir, *SMALL, *TP2_PP2[1:])
    printed, _ = start(values, tmp_path, *launch).communicate(timeout=300)
    assert_close(output_dir, alone)
    assert read_run_json(output_dir)["config"]["parallel"]["tp"] == 2, printed


def test_number_of_processes_must_fit(tmp_path):
    with pytest.raises(ValueError, match="--nproc_per_node 4"):
        runs.pretrain(small_ernie(tmp_path / "run", *SMALL, *TP2_PP2[1:]))
    assert not (tmp_path / "run").exists()


def assert_resumes(layout, tmp_path):
    """A run has the same bits if it is cut; return its directory."""
    whole = tmp_path / "whole"
    run(whole, layout)
    again = cut_back(whole, tmp_path / "again")
    run(again, layout)
    np.testing.assert_array_equal(losses(again), losses(whole))
    mine, theirs = (load_state(p / "checkpoint-10") for p in (again, whole))
    for state in (mine, theirs):
        assert state.pop("origin")["step"] == 10  # of runs with other names
    assert mine == theirs
    return whole


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", [TP2_EP2_V2, PP2_V2, EP2_V2])
def test_a_layout_is_resumed_bit_for_bit(layout, alone, tmp_path):
    assert_close(assert_resumes(layout, tmp_path), alone)


@pytest.mark.slow
def test_experts_on_two_ranks_are_resumed_and_put_together(alone, tmp_path):
    to_one = cut_back(assert_resumes(EP2, tmp_path), tmp_path / "to_one")
    run(to_one, ALONE)
    assert_close(to_one, alone)


@pytest.mark.slow
def test_a_run_of_one_process_continues_on_two_ranks(alone, tmp_path):
    to_two = cut_back(alone, tmp_path / "to_two")
    run(to_two, EP2)
    assert_close(to_two, alone)
    to_hf(to_two, tmp_path / "hf")
    exported = load_saved(tmp_path / "hf").state
    for name, weight in load_saved(to_two).state.items():
        np.testing.assert_array_equal(exported[name], weight, err_msg=name)
