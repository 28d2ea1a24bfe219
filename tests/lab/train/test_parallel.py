# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same run in one process and under fleet's layouts."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks
from lab.train.runs import losses

from paddle_adagc.lab.train.config import ParallelConfig
from paddle_adagc.lab.train.parse import load_config, parse_config
from paddle_adagc.lab.train.run import run_pretraining
from paddle_adagc.state import load_state

ROOT = Path(__file__).parents[3]
ERNIE = ROOT / "configs/proxy/ernie_moe.yaml"
NUM_STEPS = 8
SMALL = (
    "model.hidden_size=32",
    "model.moe_intermediate_size=32",
    "record.tensors=false",
    "record.moments=false",
    "data.validation_size=64",
    "clip.t_start=4",
    f"train.max_steps={NUM_STEPS}",
    "train.log_every=4",
    "train.visualdl=false",
)
TP2_PP2 = ("parallel.tp=2", "parallel.pp=2", "train.save_every=8")
EP2_V2 = ("parallel.ep=2", "parallel.sharding=4")


def settings(output_dir, *overrides):
    return [*SMALL, f"train.output_dir={output_dir}", *overrides]


def pretrain(overrides):
    """One process's part of a run."""
    return run_pretraining(load_config(ERNIE, overrides))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Directory of the run of one process."""
    output_dir = tmp_path_factory.mktemp("alone") / "run"
    batch = ("train.batch_size=8", "train.gradient_accumulation_steps=2")
    pretrain(settings(output_dir, *batch, "train.save_every=8"))
    return output_dir


@pytest.mark.slow
def test_launched_under_tp2_x_pp2(alone, tmp_path):
    batch = ("train.batch_size=8", "train.gradient_accumulation_steps=2")
    output_dir = tmp_path / "run"
    command = [sys.executable, "-m", "paddle.distributed.launch"]
    command += ["--nproc_per_node=4", f"--log_dir={tmp_path / 'log'}"]
    command += [str(ROOT / "tools/pretrain.py"), str(ERNIE)]
    command += settings(output_dir, *batch, *TP2_PP2)
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    np.testing.assert_allclose(losses(output_dir), losses(alone), rtol=1e-5)
    mine = load_state(output_dir / f"checkpoint-{NUM_STEPS}")
    theirs = load_state(alone / f"checkpoint-{NUM_STEPS}")
    assert mine["step"] == theirs["step"] == NUM_STEPS
    assert mine["gamma"] == pytest.approx(theirs["gamma"], rel=1e-4)
    run = json.loads((output_dir / "run.json").read_text())
    assert run["config"]["parallel"]["tp"] == 2


@pytest.mark.slow
def test_under_ep2_x_sharding_v2_on_four_ranks(alone, tmp_path):
    batch = ("train.batch_size=2", "train.gradient_accumulation_steps=2")
    output_dir = tmp_path / "run"
    statuses = run_on_ranks(
        pretrain, 4, overrides=settings(output_dir, *batch, *EP2_V2)
    )
    assert statuses == ["finished"] * 4
    np.testing.assert_allclose(losses(output_dir), losses(alone), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_cut_run_under_pp2_x_sharding_v2_is_resumed_bit_for_bit(tmp_path):
    output_dir = tmp_path / "run"
    overrides = settings(
        output_dir,
        "train.batch_size=2",
        "train.gradient_accumulation_steps=2",
        "train.save_every=4",
        "train.keep_checkpoints=2",
        "parallel.pp=2",
        "parallel.sharding=2",
    )
    run_on_ranks(pretrain, 4, overrides=overrides)
    whole = losses(output_dir)
    state = load_state(output_dir / "checkpoint-8")
    shutil.rmtree(output_dir / "checkpoint-8")
    run = json.loads((output_dir / "run.json").read_text())
    run["status"] = "running"
    (output_dir / "run.json").write_text(json.dumps(run))
    run_on_ranks(pretrain, 4, overrides=overrides)
    np.testing.assert_array_equal(losses(output_dir), whole)
    assert load_state(output_dir / "checkpoint-8") == state


def test_number_of_processes_must_fit(tmp_path):
    with pytest.raises(ValueError, match="--nproc_per_node 4"):
        pretrain(settings(tmp_path / "run", *TP2_PP2))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_parallel": True}, "needs tp > 1"),
        ({"ep": 2}, "ep=2 with tp=1, sharding=1"),
        ({"ep": 2, "sharding": 3}, "ep=2 with tp=1, sharding=3"),
        ({"ep": 4, "tp": 2, "sharding": 3}, "ep a divisor of tp x sharding"),
        (
            {"ep": 2, "sharding": 2, "sharding_split_param": False},
            "sharding_split_param=False",
        ),
        ({"ep": 3, "sharding": 3, "tp": 2}, "use a multiple of tp"),
        ({"ep": 2, "sharding": 2, "dp": 2}, "dp=2"),
        ({"pp": 0}, "pp"),
    ],
)
def test_refuses_layouts(fields, message):
    with pytest.raises(ValueError, match=message):
        ParallelConfig(**fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record": {"tensors": True}}, "record.tensors"),
        (
            {"faults": [{"kind": "random_tokens", "steps": [3]}]},
            "1 faults",
        ),
    ],
)
def test_refuses_what_needs_one_process(changes, message):
    values = {
        "model": {},
        "clip": {"name": "adagc"},
        "train": {"output_dir": "x", "max_steps": 5, "save_every": 5},
        "parallel": {"tp": 2},
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        parse_config(values)


def test_one_process_is_not_part_of_a_runs_identity(tmp_path):
    alone = load_config(ERNIE, settings(tmp_path)).to_dict()
    assert "parallel" not in alone
    spread = load_config(ERNIE, settings(tmp_path, *TP2_PP2)).to_dict()
    assert spread["parallel"]["pp"] == 2
