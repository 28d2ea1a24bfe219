# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer against its NumPy twin; what all do: masters, decay."""

from functools import partial

import numpy as np
import paddle
import pytest
from adagc_lab.optimizers import SPAM, ClippedAdamW, Lion, Muon, StableAdamW
from adagc_lab.optimizers.update_clips import AGC, Clippy
from helpers import assert_equal, make_parameters
from reference import optimizers as twins

SHAPES = [[6, 4], [3, 7], [5, 5], [6]]
"""A tall matrix, a wide one, a square one, and a vector."""

WEIGHTS = [
    np.random.default_rng(i).normal(0.0, 0.5, shape)
    for i, shape in enumerate(SHAPES)
]
ADAMW = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}
SPIKES = ("threshold", "reset_interval", "warmup_steps", "clip_start")
MUON = {"momentum": 0.95, "num_iterations": 5, "weight_decay": 0.1}
RULES = [
    (Lion, {"beta1": 0.95, "beta2": 0.98, "weight_decay": 1.0}),
    (Muon, {**MUON, "nesterov": True, "scaling": "rms"}),
    (Muon, {**MUON, "nesterov": False, "scaling": "spectral"}),
    (StableAdamW, ADAMW),
    (StableAdamW, {**ADAMW, "epsilon": 0.5}),  # above many roots of moments
    *(
        (SPAM, {**ADAMW, **dict(zip(SPIKES, values, strict=True))})
        for values in ((5.0, 30, 10, 5), (4.0, 9, 20, 0))
    ),
]
LOW = {"lambda_rel": 0.02, "lambda_abs": 1e-3}
CLIPS = {
    "AGC": (AGC(), partial(twins.agc, 0.01, 1e-3, False)),
    "AGC of embeddings": (AGC(), partial(twins.agc, 0.01, 1e-3, True)),
    "AGC, paper": (AGC(form="paper"), partial(twins.agc, 1e-3, 0.0, False)),
    "Clippy": (Clippy(), partial(twins.clippy, 0.1, 1e-7)),
    "Clippy, absolute": (Clippy(**LOW), partial(twins.clippy, 0.02, 1e-3)),
    "Clippy, paper": (
        Clippy(form="paper", lambda_abs=1e-3),
        partial(twins.clippy_of_paper, 0.01, 1e-3),
    ),
}
KINDS = {
    "Lion": Lion,
    "Muon": Muon,
    "SPAM": partial(
        SPAM, threshold=4.0, reset_interval=7, warmup_steps=3, clip_start=2
    ),
    "StableAdamW": StableAdamW,
    "AGC": partial(ClippedAdamW, update_clip=AGC()),
    "Clippy": partial(ClippedAdamW, update_clip=Clippy()),
}


def draw_gradients(step):
    """Gradients of a step, float64: noise, and now and then an outlier."""
    rng = np.random.default_rng([2, step])
    gradients = [rng.normal(0.3, 1.0, shape) for shape in SHAPES]
    if step % 17 == 11:
        gradients[step % len(SHAPES)] *= 100.0
    if step % 13 == 5:
        for gradient in gradients:
            gradient.reshape(-1)[step % gradient.size] = 1000.0
    return gradients


def fresh(kind, dtype="float64", **arguments):
    """An optimizer and its weights, with the same names every time."""
    with paddle.utils.unique_name.guard():
        parameters = make_parameters(SHAPES, dtype)
        for parameter, value in zip(parameters, WEIGHTS, strict=True):
            parameter.set_value(paddle.to_tensor(value).astype(dtype))
        return kind(0.01, parameters=parameters, **arguments), parameters


def run(optimizer, parameters, steps):
    """Make the steps of these indices; the weights after them, float64."""
    with paddle.utils.unique_name.guard():
        for step in steps:
            gradients = draw_gradients(step)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                gradient = paddle.to_tensor(gradient)
                parameter.grad = gradient.astype(parameter.dtype)
            optimizer.step()
    return [p.astype("float64").numpy() for p in parameters]


def assert_is_twin(kind, make_twin):
    """Compare 100 steps with a NumPy twin per tensor."""
    got = run(*fresh(kind), range(100))
    weights, of_tensors = WEIGHTS, [make_twin(lr=0.01) for _ in SHAPES]
    for step in range(100):
        tensors = zip(of_tensors, weights, draw_gradients(step), strict=True)
        weights = [twin.step(w, g) for twin, w, g in tensors]
    assert_equal(got, weights, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("rule", "arguments"), RULES)
def test_equals_the_numpy_twin(rule, arguments):
    twin = getattr(twins, rule.__name__)
    assert_is_twin(partial(rule, **arguments), partial(twin, **arguments))


@pytest.mark.parametrize("name", CLIPS)
def test_clipped_adamw(name):
    clip, twin = CLIPS[name]
    is_embedding_fun = (lambda _: True) if "embeddings" in name else None
    clipped = partial(ClippedAdamW, update_clip=clip, **ADAMW)
    assert_is_twin(
        partial(clipped, is_embedding_fun=is_embedding_fun),
        partial(twins.ClippedAdamW, clip=twin, **ADAMW),
    )


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


def test_master_weights_follow_a_float32_run(kind):
    expected = run(*fresh(kind, "float32"), range(6))
    got = run(*fresh(kind, "bfloat16", multi_precision=True), range(6))
    assert_equal(got, expected, rtol=0.05, atol=0.05)
    with pytest.raises(ValueError, match="use multi_precision=True"):
        run(*fresh(kind, "bfloat16"), [0])


def test_clips_first_and_only_chosen_weights_decay(kind):
    chosen = []
    optimizer, parameters = fresh(
        kind,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(0.0),
        weight_decay=0.5,
        apply_decay_param_fun=lambda name: name in chosen,
    )
    chosen.append(parameters[0].name)
    after = run(optimizer, parameters, [0])
    decayed = [WEIGHTS[0] * (1 - 0.01 * 0.5), *WEIGHTS[1:]]
    assert_equal(after, decayed, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("epsilon", [1e-15, 1e-30])
def test_stable_adamw_without_gradients_is_finite(epsilon):
    optimizer, parameters = fresh(partial(StableAdamW, epsilon=epsilon))
    for parameter in parameters:
        parameter.grad = paddle.zeros_like(parameter)
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in parameters)


def test_spam_s_reset_heals_an_infinite_second_moment():
    (weight,) = make_parameters([[2]])
    optimizer = SPAM(0.01, parameters=[weight], reset_interval=4, clip_start=3)
    positions = []
    for step in range(6):
        weight.grad = paddle.to_tensor([1e20 if step == 1 else 1.0, 1.0])
        optimizer.step()
        positions.append(weight.numpy().copy())
    (square,) = optimizer._accumulators["moment2"].values()
    assert np.isfinite(square.numpy()).all()
    assert positions[2][0] == positions[1][0]  # no step over infinity
    assert positions[5][0] < positions[2][0]


def test_clippy_ignores_elements_that_do_not_move():
    (weight,) = make_parameters([[2]])
    weight.set_value(np.full(2, 1e3, "float32"))
    optimizer = ClippedAdamW(
        1.0, parameters=[weight], update_clip=Clippy(), weight_decay=0.0
    )
    weight.grad = paddle.to_tensor([0.0, 1.0])
    optimizer.step()
    np.testing.assert_allclose(weight.numpy(), [1e3, 999.0], rtol=1e-6)
