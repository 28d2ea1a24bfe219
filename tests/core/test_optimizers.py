# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip inside Paddle's optimizers, as a user plugs it in."""

import sys

import numpy as np
import paddle
import pytest
from helpers import NUMPY

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.state import ClipState


def make_model(seed=0):
    paddle.seed(seed)
    return paddle.nn.Sequential(
        paddle.nn.Linear(4, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1)
    )


def batch(step, outlier_at=(6, 9)):
    rng = np.random.default_rng(step)
    x = rng.normal(size=[16, 4]).astype("float32")
    y = x.sum(1, keepdims=True) * (1000.0 if step in outlier_at else 1.0)
    return paddle.to_tensor(x), paddle.to_tensor(y.astype("float32"))


def loss_of(model, step):
    x, y = batch(step)
    return paddle.nn.functional.mse_loss(model(x), y)


def plugged(clip, make=paddle.optimizer.SGD, in_groups=False, **options):
    """A model, and its optimizer with a clip."""
    model = make_model()
    parameters = model.parameters()
    if in_groups:
        parameters = [{"params": model[i].parameters()} for i in (0, 2)]
    return model, make(0.01, parameters=parameters, grad_clip=clip, **options)


def step_with(optimizer):
    optimizer.step()
    optimizer.clear_grad()


def train(model, optimizer, steps=12, clip_by_hand=list):
    losses = []
    for step in range(steps):
        loss = loss_of(model, step)
        loss.backward()
        clip_by_hand([(p, p.grad) for p in model.parameters()])
        step_with(optimizer)
        losses.append(loss.item())
    return losses, [p.numpy().tolist() for p in model.parameters()]


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Lamb"])
def test_optimizer_sees_the_clipped_gradients(name):
    make = getattr(paddle.optimizer, name)
    clip, by_hand = (ClipGradByAdaGC(t_start=4) for _ in "ab")
    trained = train(*plugged(clip, make), steps=10)
    tensors = clip.metrics()["tensors"].values()
    assert max(tensor["h"] for tensor in tensors) < 0.1
    assert train(*plugged(None, make), 10, by_hand) == trained


FAILING = {
    "exception before the update": "append_regularization_ops",
    "exception in the update": "_append_optimize_op",
}


def unmade_step(kind, model, optimizer, scaler):
    """Make a step that changes no weight, as ``kind`` says."""
    factor = float("inf") if kind == "overflow" else 1.0
    scaler.scale(loss_of(model, 99) * factor).backward()

    def fail(*arguments, **named):
        raise MemoryError

    if kind in FAILING:
        setattr(optimizer, FAILING[kind], fail)
        with pytest.raises(MemoryError):
            scaler.step(optimizer)
        delattr(optimizer, FAILING[kind])
        scaler._optimizer_states.clear()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.clear_grad()


@pytest.mark.parametrize("name", [None, "adam"])
def test_a_clip_that_missed_the_first_steps_says_so(name):
    model, optimizer = plugged(None, paddle.optimizer.AdamW, name=name)
    train(model, optimizer, steps=2)
    optimizer._grad_clip = ClipGradByAdaGC()
    loss_of(model, 2).backward()
    with pytest.warns(UserWarning, match="its optimizer has made some"):
        optimizer.step()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "overflow",
            marks=pytest.mark.skipif(
                NUMPY >= (2, 4), reason="Paddle's GradScaler fails at it"
            ),
        ),
        *FAILING,
    ],
)
@pytest.mark.parametrize(
    ("init", "in_groups"),
    [("warmup_min", False), ("warmup_min", True), ("warmup_ema", False)],
)
def test_scaled_steps_are_plain_ones_and_those_without_an_update_are_none(
    scaler_on_cpu, kind, init, in_groups
):
    def run(unmade):
        clip = ClipGradByAdaGC(init=init, t_start=4)
        model, optimizer = plugged(clip, in_groups=in_groups)
        clip.bind(model)
        for step in range(8):
            for _ in range(unmade.count(step)):
                unmade_step(kind, model, optimizer, scaler_on_cpu)
            loss = loss_of(model, step)
            if unmade:
                scaler_on_cpu.scale(loss).backward()
                scaler_on_cpu.step(optimizer)
                scaler_on_cpu.update()
                optimizer.clear_grad()
            else:
                loss.backward()
                step_with(optimizer)
        assert "_create_optimization_pass" not in vars(optimizer)
        weights = [p.numpy().tolist() for p in model.parameters()]
        state = ClipState.from_dict(clip.state_dict())
        kept = {k: v.tolist() for k, v in state.vectors().items()}
        num_nonfinite = clip.metrics()["nonfinite_total"]
        return state.step, kept, weights, num_nonfinite

    plain = run([])
    assert (plain[0], plain[3]) == (8, 0)
    assert run([0, 0, 0, 3, 4, 6, 6]) == plain


class OwnUpdate(paddle.optimizer.SGD):
    """Of the shape of Muon in Paddle 3.4, which calls no common update."""

    def _apply_optimize(self, loss, startup_program, params_grads):
        params_grads = self._grad_clip(params_grads)
        for parameter, gradient in params_grads:
            self._muon_update(parameter, gradient)

    def _muon_update(self, parameter, gradient):
        with paddle.no_grad():
            parameter.subtract_(0.01 * gradient)

    def step(self):
        found = [(p, p.grad) for p in self._parameter_list]
        self._apply_optimize(None, None, found)


def test_an_update_of_an_optimizer_s_own_counts():
    clip = ClipGradByAdaGC(t_start=2)
    model, optimizer = plugged(clip, OwnUpdate)
    usual = {*vars(optimizer)}
    for step in range(4):
        assert clip.num_steps == step
        loss_of(model, step).backward()
        step_with(optimizer)
        assert {*vars(optimizer)} == usual


@pytest.mark.skipif(
    paddle.__version__ < "3.3" or sys.version_info >= (3, 13),
    reason="tried with Paddle 3.3 and Python 3.11 alone",
)
@pytest.mark.parametrize(
    "optimizer_class", [paddle.optimizer.AdamW, paddle.optimizer.Momentum]
)
def test_to_static_training_step(optimizer_class):
    losses = []
    for convert in (lambda step: step, paddle.jit.to_static):
        clip = ClipGradByAdaGC()
        model, optimizer = plugged(clip, optimizer_class)
        clip.bind(model)

        @convert
        def train_step(x, y, model=model, optimizer=optimizer):
            loss = paddle.nn.functional.mse_loss(model(x), y)
            loss.backward()
            step_with(optimizer)
            return loss

        losses.append([train_step(*batch(step)).item() for step in range(8)])
        assert clip.num_steps == 8
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("in_groups", [False, True])
def test_frozen_tensors_are_left_alone_until_they_are_trained(in_groups):
    clip = ClipGradByAdaGC(t_start=3)
    model, optimizer = plugged(clip, paddle.optimizer.AdamW, in_groups)
    clip.bind(model)
    for is_frozen in (True, False):
        for parameter in model[0].parameters():
            parameter.stop_gradient = is_frozen
        train(model, optimizer, steps=4)
        gamma = clip.state_dict()["gamma"]["0.weight"].item()
        assert np.isinf(gamma) == is_frozen
    assert clip.num_steps == 8
    assert len(clip.metrics()["tensors"]) == 4
