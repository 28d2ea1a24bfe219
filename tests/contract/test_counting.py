# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training step counts once, whoever calls the clip in it."""

import copy

import numpy as np
import paddle
import pytest
from helpers import NUMPY
from paddle.base import core, framework

from paddle_adagc import ClipGradByAdaGC, rule


def make(clip, kinds):
    """Optimizers with a model of their own each, and one clip."""
    models = [paddle.nn.Linear(3, 3) for _ in kinds]
    optimizers = [
        kind(0.01, parameters=model.parameters(), grad_clip=clip)
        for kind, model in zip(kinds, models, strict=True)
    ]
    return models, optimizers


def backward(models):
    sum(m(paddle.ones([2, 3])).square().mean() for m in models).backward()


@pytest.mark.filterwarnings("error")
def test_two_optimizers_of_one_clip_make_one_step_each_time():
    clip = ClipGradByAdaGC(t_start=5)
    kinds = paddle.optimizer.Momentum, paddle.optimizer.AdamW
    models, optimizers = make(clip, kinds)
    for step in range(60):
        backward(models)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.clear_grad()
        assert clip.num_steps == step + 1
        assert len(clip.metrics()["tensors"]) == 4
    alone = ClipGradByAdaGC(t_start=5)
    assert len(alone.state_dict()["gamma"]) == 0
    assert len(clip.state_dict()["gamma"]) == 4


@pytest.mark.skipif(
    NUMPY >= (2, 4), reason="Paddle's GradScaler fails at an overflow"
)
def test_a_skipped_update_of_the_second_takes_back_nothing_of_the_first(
    scaler_on_cpu,
):
    clip = ClipGradByAdaGC(t_start=0)
    models, optimizers = make(clip, [paddle.optimizer.SGD] * 2)
    scaler = scaler_on_cpu
    for is_bad in (False, True):
        inputs = paddle.ones([2, 3])
        second = models[1](inputs * (float("inf") if is_bad else 1))
        loss = models[0](inputs).square().mean() + second.mean()
        scaler.scale(loss).backward()
        weights = models[1].weight.numpy()
        before = clip.state_dict()
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
    assert (models[1].weight.numpy() == weights).all()
    after = clip.state_dict()
    assert after["step"] == before["step"] + 1
    changed = {
        key
        for key, gamma in after["gamma"].items()
        if float(gamma.item()) != float(before["gamma"][key].item())
    }
    assert changed == {p.name for p in models[0].parameters()}


def test_a_clip_called_by_hand_and_by_its_optimizer_says_so():
    clip = ClipGradByAdaGC()
    (model,), (optimizer,) = make(clip, [paddle.optimizer.AdamW])
    backward([model])
    clip([(p, p.grad) for p in model.parameters()])
    with pytest.warns(UserWarning, match="counts as a step.*Leave one"):
        optimizer.step()


def failed_step():
    """A clip whose ninth step ended between the clip and the update."""
    clip = ClipGradByAdaGC(t_start=2)
    model = paddle.nn.Linear(3, 3)
    optimizer = paddle.optimizer.AdamW(
        0.01, parameters=model.parameters(), weight_decay=0.1, grad_clip=clip
    )
    states = []
    for step in range(9):
        states.append(clip.state_dict())
        backward([model])
        with pytest.MonkeyPatch.context() as patch:
            if step == 8:
                patch.setattr(optimizer, "append_regularization_ops", None)
                with pytest.raises(TypeError):
                    optimizer.step()
            else:
                optimizer.step()
        optimizer.clear_grad()
    return clip, model, optimizer, states


def test_a_state_saved_after_a_failed_step_is_that_before_it():
    clip, *_ = failed_step()
    assert clip.state_dict()["step"] == 8


def test_a_state_loaded_after_a_failed_step_stays():
    clip, model, optimizer, states = failed_step()
    clip.set_state_dict(states[5])
    backward([model])
    optimizer.step()
    assert clip.num_steps == 6


def test_a_warm_up_restarted_after_a_failed_step_is_whole():
    clip, model, optimizer, _ = failed_step()
    clip.restart_warmup()
    assert clip.warmup_left == 2
    backward([model])
    optimizer.step()
    assert (clip.num_steps, clip.warmup_left) == (9, 1)


def shown(clip):
    return {name[:-4] for name in clip.metrics()["tensors"]}


@pytest.mark.parametrize("has_gradient", [False, True])
def test_after_a_step_without_the_first_optimizer_all_tensors_are_shown(
    has_gradient,
):
    """It has overflown, so that its step is not called, or has no gradient."""
    clip = ClipGradByAdaGC(t_start=0)
    models, optimizers = make(clip, [paddle.optimizer.SGD] * 2)
    whole = {p.name[:-4] for model in models for p in model.parameters()}
    for step in range(6):
        used = models[step == 2 :]
        backward(models if has_gradient else used)
        for model, optimizer in zip(models, optimizers, strict=True):
            if model in used or not has_gradient:
                optimizer.step()
            optimizer.clear_grad(set_to_zero=False)
        tensors = {p.name[:-4] for model in used for p in model.parameters()}
        assert shown(clip) == (tensors if step == 2 else whole)


@pytest.mark.skipif(
    NUMPY >= (2, 4), reason="Paddle's GradScaler fails at an overflow"
)
def test_an_overflow_is_shown_with_the_tensors_of_all_groups(scaler_on_cpu):
    clip = ClipGradByAdaGC(t_start=0)
    model = paddle.nn.Linear(3, 3)
    groups = [{"params": [p]} for p in model.parameters()]
    optimizer = paddle.optimizer.SGD(0.01, parameters=groups, grad_clip=clip)
    for step in range(4):
        loss = model(paddle.ones([2, 3])).mean()
        scaler_on_cpu.scale(loss).backward()
        if step == 2:
            model.weight.grad.set_value(np.full([3, 3], np.inf, np.float32))
        scaler_on_cpu.unscale_(optimizer)
        optimizer._set_auxiliary_var("found_inf", scaler_on_cpu._found_inf)
        optimizer.step()
        scaler_on_cpu.update()
        optimizer.clear_grad()
        numbers = clip.metrics()
        assert len(numbers["tensors"]) == 2
        assert numbers["nonfinite"] == (step == 2)


def test_a_step_within_auto_cast_is_in_float32(monkeypatch):
    """On a GPU level O2 would round the clip's numbers."""
    clip, tracer = ClipGradByAdaGC(), framework._dygraph_tracer()
    (model,), (optimizer,) = make(clip, [paddle.optimizer.SGD])
    levels = []
    square_root = rule.square_root
    monkeypatch.setattr(
        "paddle_adagc.rule.square_root",
        lambda x: levels.append(tracer._amp_level) or square_root(x),
    )
    backward([model])
    monkeypatch.setattr(tracer, "_amp_level", core.AmpLevel.O2)
    optimizer.step()
    assert levels == [core.AmpLevel.O0]
    assert tracer._amp_level == core.AmpLevel.O2


def test_a_copy_of_a_clip_has_a_memory_of_its_own():
    clip = ClipGradByAdaGC()
    (model,), (optimizer,) = make(clip, [paddle.optimizer.SGD])
    backward([model])
    optimizer.step()
    other = copy.copy(clip)
    other.lambda_rel = 1.5
    optimizer.step()
    assert (clip.num_steps, other.num_steps) == (2, 1)
    assert other.state_dict()["config"]["lambda_rel"] == 1.5
