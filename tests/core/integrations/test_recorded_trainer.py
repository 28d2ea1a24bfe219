# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a Trainer records of a run, and what it does about a bad step."""

import shutil

import numpy as np
import pytest
from core.integrations.trainers import attached, clipping, gamma_of, watching

from paddle_adagc import ClipGradByAdaGC, load_state

watch = pytest.importorskip("paddle_adagc.watch")


def test_a_checkpoint_holds_the_clip_that_acts_not_its_shadow(tmp_path):
    def shadow():
        return ClipGradByAdaGC(init="warmup_ema")

    made = clipping(tmp_path, max_steps=2, shadow=shadow())
    made.train()
    assert gamma_of(tmp_path / "checkpoint-2") == gamma_of(made.clip)
    again = clipping(tmp_path / "b", max_steps=3, shadow=shadow())
    again.train(str(tmp_path / "checkpoint-2"))
    assert again.clip.num_steps == 3


def test_the_trainer_s_own_clip_is_recorded(tmp_path):
    made = watching(tmp_path, max_steps=3)
    made.train()
    shutil.rmtree(tmp_path / "checkpoint-1")
    assert made.args.max_grad_norm == 1.0
    logs = made.logged
    assert logs["global_norm"] == logs["clip_global_grad_norm"] > 1
    assert logs["clip_clipped_grad_norm"] == pytest.approx(1.0, rel=1e-3)
    assert logs["clip_h_min_worst"] == pytest.approx(logs["clip_h_min"])
    assert logs["clip_h_min_worst_step"] == 3
    assert "clip_shadow_h_min" in logs
    state = load_state(tmp_path / "checkpoint-3")
    assert (state["step"], {*state["gamma"]}) == (3, {"weight", "bias"})
    made.args.max_grad_norm, made._build_grad_clip = 0, lambda: None
    made.args.max_steps = 1
    made.train()  # anew: beside the record of before
    assert made.optimizer._grad_clip is None
    for name, steps in (("record", [1, 2, 3]), ("record-2", [1])):
        run = watch.read_record(tmp_path / name)
        assert run.step.tolist() == steps
        assert np.isfinite(run.column("loss")).all()
    assert run.sessions[0].facts["clip"] == "none"


@pytest.mark.parametrize("make", [clipping, attached, watching])
def test_no_checkpoint_is_ahead_of_its_record(make, tmp_path):
    made = make(tmp_path, max_steps=3, logging_steps=9)
    made.dies_after = (2, "scheduler.pdparams")
    with pytest.raises(KeyboardInterrupt):
        made.train()
    run = watch.read_record(tmp_path / "record")
    assert run.step.tolist() == [1, 2]
    assert run.end["kind"] == "exception"
    assert run.end["text"].startswith("KeyboardInterrupt")


def test_what_cannot_be_recorded_ends_no_training(tmp_path):
    (tmp_path / "record").write_text("a file")
    made = clipping(tmp_path, max_steps=2)
    with pytest.warns(UserWarning, match="nothing is recorded in"):
        made.train()
    assert made.clip.num_steps == 2
    made = clipping(tmp_path / "b", max_steps=2, record=False)
    made.train()
    assert not (tmp_path / "b/record").exists()
    assert "clip_h_min_worst" not in made.logged


@pytest.mark.parametrize("make", [clipping, attached])
def test_a_step_is_left_out(make, tmp_path):
    sizes = [1.0 + 0.01 * (step % 7) for step in range(80)]
    sizes[70] = 50.0
    options = {"skip_above": 50.0, "stop_on": "nan"}
    made = make(tmp_path, max_steps=80, **options)
    made.args.logging_steps = 79
    forward = made.model.forward

    def sized(x):  # the stand-in does not clear gradients
        made.optimizer.clear_grad()
        return forward(x) * sizes[made.state.global_step]

    made.model.forward = sized
    made.train()
    assert made.clip.num_steps == 79
    run = watch.read_record(tmp_path / "record")
    assert run.step[run.column("skipped") == 1].tolist() == [71]
    logs = made.logged  # of step 79, with the worst since the line before
    assert logs["clip_global_grad_norm_max"] > 10 * logs["global_norm"]
    assert logs["clip_global_grad_norm_max_step"] == 71
    for bad in ({"skip_above": -1}, {"stop_on": "inf"}):
        with pytest.raises(ValueError, match="must be"):
            clipping(tmp_path / "b", **bad)
    with pytest.raises(ValueError, match="need the record"):
        clipping(tmp_path / "b", record=False, skip_above=6)
