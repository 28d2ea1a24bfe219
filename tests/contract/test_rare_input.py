# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What users may give, and few do."""

import errno
import math
import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from core.integrations.trainers import clipping
from helpers import run_python

from paddle_adagc import (
    ClipGradByAdaGC,
    load_state,
    run,
    save_state,
    spike_score,
)
from paddle_adagc.optimizer import clip_of
from paddle_adagc.run.process import Process
from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.recorder import record_of


def make_training(width=4):
    model, clip = paddle.nn.Linear(width, 2), ClipGradByAdaGC(t_start=1)
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=clip
    )
    return model, optimizer, clip


@pytest.mark.parametrize("flag", [True, 1])
def test_an_update_that_was_left_out_is_no_step(flag, tmp_path):
    """``MixPrecisionScaler`` says so by a number, not by a bool."""
    model, optimizer, clip = make_training()
    record = Record(tmp_path, optimizer, model)
    for found_inf in (False, flag, False):
        loss = model(paddle.ones([1, 4])).mean()
        loss.backward()
        optimizer._set_auxiliary_var("found_inf", found_inf)
        optimizer.step()
        record.step(loss)
        optimizer.clear_grad()
    record.close()
    assert clip.num_steps == 2
    overflows = read_record(tmp_path).column("overflow") == 1
    assert overflows.tolist() == [False, True, False]


def test_a_rank_whose_optimizer_has_no_parameter_has_a_clip():
    _, optimizer, clip = make_training()
    optimizer._param_groups = []  # as sharding V1 leaves some ranks
    assert clip_of(optimizer) is clip


def test_a_warm_up_without_a_bound_may_be_typed(capsys):
    words = ["--check", "--lambda-abs", "inf", "--init=warmup_ema", "true"]
    assert run.main(words) == 0
    assert "lambda_abs=inf (--lambda-abs)" in capsys.readouterr().out


def test_a_folder_whose_list_of_files_cannot_be_synced(monkeypatch, tmp_path):
    sync = os.fsync

    def refuse(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    save_state(ClipGradByAdaGC().state_dict(), tmp_path / "new")
    assert load_state(tmp_path / "new")["step"] == 0


def test_a_loss_of_a_float_and_a_tensor(monkeypatch, tmp_path):
    monkeypatch.setattr("paddle_adagc.watch.ring._GLANCE_SECONDS", 0.0)
    model, optimizer, _ = make_training()
    record = Record(tmp_path, optimizer, model)
    for _ in range(4):
        loss = model(paddle.ones([1, 4])).mean() * 0 + 1
        loss.backward()
        optimizer.step()
        record.add_loss(0.5)
        record.step(loss)
    record.close()
    assert read_record(tmp_path).column("loss").tolist() == [1.5] * 4


def together(scaler, a, b):
    paddle.autograd.backward([scaler.scale(a), scaler.scale(b)])


def changed(scaler, a, b):
    ((scaler.scale(a) + scaler.scale(b)) / 2).backward()


@pytest.mark.parametrize(
    ("way", "is_on", "loss"),
    [
        (together, True, [3.0] * 3),
        (changed, True, None),
        (changed, False, [1.5] * 3),
    ],
)
def test_no_recorded_loss_is_a_scaled_one(
    scaler_on_cpu, way, is_on, loss, tmp_path
):
    """One that is made of scaled losses is not known."""
    from paddle_adagc.watch.trainer import open_record

    scaler = scaler_on_cpu
    if not is_on:
        scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
    model, optimizer, _ = make_training()
    record = open_record(tmp_path, optimizer, model=model)
    for _ in range(3):
        zero = model(paddle.ones([1, 4])).mean() * 0
        way(scaler, zero + 1, zero + 2)
        optimizer.step()
    record.close()
    found = read_record(tmp_path)
    assert len(found.step) == 3
    assert ("loss" in found.columns) == (loss is not None)
    if loss is not None:
        assert found.column("loss").tolist() == loss


def test_units_given_again_are_the_only_ones():
    model = paddle.nn.Linear(4, 4)
    keys = []
    for units in ({"weight": {"parts": ["a", "b"]}}, {}, None):
        clip = ClipGradByAdaGC()
        clip.bind(model, units=units)
        keys.append([*clip.state_dict()["gamma"]])
    assert keys == [["a.weight", "b.weight", "bias"], *[["weight", "bias"]] * 2]


def test_overrides_that_cannot_be_meant_are_refused_before_a_step():
    """One rank alone may hold the tensor: the others would wait for it."""
    with pytest.raises(ValueError, match="no regular expression"):
        ClipGradByAdaGC(overrides={re.compile("weight"): None})
    clip = ClipGradByAdaGC(overrides={"weight": None, "w": {"beta": 0.5}})
    with pytest.raises(ValueError, match="matches both 'weight' and 'w'"):
        clip.bind(paddle.nn.Linear(2, 2))


SCRIPT = """
import paddle
from paddle_adagc import ClipGradByAdaGC
model = paddle.nn.LayerList([paddle.nn.Linear(2, 2) for _ in "ab"])
for parameter in model[0].parameters():
    parameter.stop_gradient = True
groups = [{"params": layer.parameters()} for layer in model]
clip = ClipGradByAdaGC()
optimizer = paddle.optimizer.AdamW(parameters=groups, grad_clip=clip)
for _ in range(3):
    model[1](model[0](paddle.ones([1, 2]))).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
"""


@pytest.mark.slow
def test_adagc_run_counts_the_steps_of_a_frozen_backbone_s_head(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["-m", "paddle_adagc.run", sys.executable, "train.py"]
    ended = run_python(tmp_path, *words, PYTHONPATH=":".join(sys.path))
    assert ended.returncode == 0, ended.stderr
    assert "AdaGC clipped 3 steps" in ended.stderr + ended.stdout


def test_the_advice_for_a_run_without_a_clip_can_be_typed():
    from paddle_adagc.watch.advice import _switch

    shadow = "ClipGradByAdaGC(lambda_abs=inf, init='warmup_ema')"
    facts = {"clip": "none", "shadow": shadow}
    ended = SimpleNamespace(facts=lambda *_: facts, end={"kind": "finished"})
    (advice,) = _switch(ended, "")
    code = advice["text"].split("optimizer ")[1].split(", or, ")[0]
    clip = eval(code, {"ClipGradByAdaGC": ClipGradByAdaGC, "math": math})
    assert (clip.lambda_abs, clip.init) == (math.inf, "warmup_ema")
    command = advice["command"].replace("COMMAND", "true").split()[1:]
    assert run.main(["--check", *command]) == 0


def test_units_of_a_trainer_reach_a_clip_that_was_bound_before(tmp_path):
    units = {"weight": {"parts": ["a", "b"]}}
    trainer = clipping(tmp_path, model=paddle.nn.Linear(2, 2), units=units)
    trainer.clip.bind(trainer.model)
    trainer.train()
    assert "a.weight" in trainer.clip.state_dict()["gamma"]


@pytest.mark.parametrize("new_tensors", ["raise", "start"])
def test_no_rank_of_data_parallelism_takes_a_larger_model_s_state(
    new_tensors, monkeypatch, caplog
):
    def make_clip(num_layers):
        clip = ClipGradByAdaGC(t_start=1)
        layers = [paddle.nn.Linear(4, 4) for _ in range(num_layers)]
        clip.bind(paddle.nn.Sequential(*layers))
        return clip

    state, clip = make_clip(6).state_dict(), make_clip(3)
    monkeypatch.setattr("paddle.distributed.get_world_size", lambda: 2)
    if new_tensors == "raise":
        with pytest.raises(ValueError, match=r"'3\.weight'.* unknown"):
            clip.set_state_dict(state)
    else:
        clip.set_state_dict(state, new_tensors="start")
        assert "5.bias is gone" in caplog.text


def test_names_that_one_more_layer_moved_are_another_model_s():
    def train(clip, model):
        optimizer = paddle.optimizer.SGD(
            parameters=model.parameters(), grad_clip=clip
        )
        model(paddle.ones([1, 4])).mean().backward()
        optimizer.step()

    def make_model():
        return paddle.nn.Sequential(*(paddle.nn.Linear(4, 4) for _ in "abc"))

    clips = [ClipGradByAdaGC(t_start=1) for _ in "ab"]
    with paddle.utils.unique_name.guard():
        train(clips[0], make_model())
    clips[1].set_state_dict(clips[0].state_dict())
    with paddle.utils.unique_name.guard():
        paddle.nn.Linear(4, 4)
        model = make_model()
    with pytest.raises(ValueError, match="another model's"):
        train(clips[1], model)


def test_a_trainer_whose_record_was_refused_is_no_loop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, optimizer, _ = make_training()
    process = Process({}, True, True, False)
    trainer = SimpleNamespace(optimizer=optimizer)
    process._trainers.append(lambda: trainer)
    process._begin_record(optimizer)
    assert not [*tmp_path.iterdir()]


def test_the_last_line_names_a_record_where_it_is(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    _, optimizer, _ = make_training()
    process = Process({}, True, True, False)
    process._begin_record(optimizer)
    record = record_of(optimizer)
    assert "into adagc-record" in capsys.readouterr().err
    record._writer.directory = tmp_path / "my own"  # a full disk
    process._say_what_was_done()
    assert "adagc-report 'my own'" in capsys.readouterr().err
    record.close()


def test_losses_in_bfloat16_keep_their_fractions():
    losses = np.random.default_rng(0).normal(3.0, 0.1, 1200)
    losses[1100] = 4.6
    half = [paddle.to_tensor(x).astype("bfloat16") for x in losses]
    assert spike_score(half).indices.tolist() == [1100]
    half[600] = paddle.to_tensor(float("nan"), "bfloat16")
    assert spike_score(half).indices.tolist() == [600, 1100]
    with pytest.raises(TypeError, match="uint16"):  # the bits
        spike_score(paddle.to_tensor(losses).astype("bfloat16"))


def test_prefixes_may_end_in_a_dot():
    inner, optimizer, clip = make_training()
    clip.bind(inner)
    inner(paddle.ones([1, 4])).mean().backward()
    optimizer.step()
    state = clip.state_dict()
    wrapped = ClipGradByAdaGC()
    wrapped.bind(paddle.nn.Sequential(("model", inner)))
    wrapped.set_state_dict(state, rename={"": "model."})
    back = ClipGradByAdaGC()
    back.bind(inner)
    back.set_state_dict(wrapped.state_dict(), rename={"model.": ""})
    assert back.state_dict()["gamma"] == state["gamma"]
