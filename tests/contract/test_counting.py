# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training step counts once, whoever calls the clip in it."""

import paddle
import pytest
from helpers import NUMPY

from paddle_adagc import ClipGradByAdaGC


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
