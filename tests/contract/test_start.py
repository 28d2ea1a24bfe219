# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where gamma starts: what the clip says of it, and how fast it may grow."""

import re
import warnings

import numpy as np
import paddle
import pytest

from paddle_adagc import ClipGradByAdaGC

LOW = "leave the warm-up with gamma below a tenth of their norm"


def said(messages, part):
    return [str(m.message) for m in messages if part in str(m.message)]


def train(clip, model, *, num_groups=1, num_steps=40):
    """Fit a random teacher; return what was warned of, by step."""
    rng = np.random.default_rng(0)
    x = paddle.to_tensor(rng.normal(size=[64, 8]), "float32")
    y = paddle.to_tensor(rng.normal(size=[64, 4]), "float32")
    clip.bind(model)
    parameters = model.parameters()
    groups = [{"params": parameters[i::num_groups]} for i in range(num_groups)]
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=groups, grad_clip=clip)
    warned = []
    for _ in range(num_steps):
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            paddle.square(model(x) - y).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        warned.append(said(messages, LOW))
    return warned


def make_model(*, has_zero_head):
    paddle.seed(0)
    layers = [paddle.nn.Linear(8, 8) for _ in range(3)]
    head = paddle.nn.Linear(8, 4)
    if has_zero_head:
        for parameter in head.parameters():
            parameter.set_value(paddle.zeros_like(parameter))
    return paddle.nn.Sequential(*layers, head)


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("strict", [False, True])
def test_gradients_that_begin_at_zero_are_named_once(num_groups, strict):
    clip = ClipGradByAdaGC(t_start=20, strict=strict)
    model = make_model(has_zero_head=True)
    warned = train(clip, model, num_groups=num_groups)
    assert [i for i, messages in enumerate(warned) if messages] == [21]
    found = re.fullmatch(rf"(\d) of 8 tensors \((.*)\) {LOW}: .*", *warned[21])
    assert 3 <= int(found[1]) <= 6  # no tensor of the head
    assert len(re.findall(r"[012]\.(weight|bias)", found[2])) == 3


def test_the_warning_says_how_many_which_and_what_h():
    """To both parameter groups; a tensor without a gradient is not named."""
    weights = [paddle.create_parameter([1], "float32") for _ in range(7)]
    clip = ClipGradByAdaGC(t_start=3)
    clip.bind(paddle.nn.ParameterList(weights))
    groups = [{"params": weights[:2]}, {"params": weights[2:]}]
    optimizer = paddle.optimizer.SGD(0.1, parameters=groups, grad_clip=clip)
    first = [0.04, 0.45, 0.02, 0.04, 0.3, None, 0.0]
    later = [0.5, 0.5, 0.5, 0.5, 0.5, None, 0.0]
    warned = []
    for norms in [first, *[later] * 9]:
        for weight, norm in zip(weights, norms, strict=True):
            if norm is not None:
                weight.grad = paddle.full([1], norm)
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            optimizer.step()
        warned.append(said(messages, LOW))
    assert [len(messages) for messages in warned] == [0] * 4 + [1] + [0] * 5
    assert warned[4] == [
        f"3 of 7 tensors (0, 2, 3) {LOW}: step 4 multiplied their gradients by "
        "h of 0.042 to 0.083, and gamma grows by at most 0.04% a step. gamma "
        'is the smallest norm of the warm-up; init="warmup_ema" starts it '
        "where the norms are"
    ]


@pytest.mark.parametrize(
    ("has_zero_head", "arguments"),
    [
        (False, {"t_start": 20}),
        (True, {"t_start": 20, "init": "warmup_ema"}),
        (True, {"t_start": 0}),
        (True, {"t_start": 60}),  # its warm-up is not over
    ],
)
def test_other_starts_are_not_warned_of(has_zero_head, arguments):
    clip = ClipGradByAdaGC(**arguments)
    warned = train(clip, make_model(has_zero_head=has_zero_head))
    assert not any(warned)


def test_warmup_ema_starts_at_norms_that_begin_at_zero():
    clip = ClipGradByAdaGC(t_start=20, init="warmup_ema")
    train(clip, make_model(has_zero_head=True))
    tensors = clip.metrics()["tensors"].values()
    assert min(tensor["h"] for tensor in tensors) > 0.3


def make_fed(clip):
    """Return what feeds a clip one norm, and returns the gamma after it."""
    weight = paddle.create_parameter([1], "float32")

    def feed(norm):
        clip([(weight, paddle.full([1], norm))])
        return clip.metrics()["tensors"].popitem()[1]["gamma"]

    return feed


@pytest.mark.parametrize("t_start", [5, 10, 20, 100, 400])
@pytest.mark.parametrize("factor", [2.0, 90.0, 1e6])
def test_a_bad_step_raises_gamma_of_warmup_ema_within_its_bound(
    t_start, factor
):
    """By ``min(10 / t_start, 1)`` in the warm-up, then by 1% at most."""
    clip = ClipGradByAdaGC(t_start=t_start, init="warmup_ema")
    feed = make_fed(clip)
    for _ in range(t_start - 1):
        before = feed(1.0)
    assert feed(factor) <= before * (1 + min(10 / t_start, 1)) * (1 + 1e-6)
    before = feed(1.0)
    assert feed(factor) <= before * 1.01 * (1 + 1e-6)


def test_a_factor_below_1_does_not_shrink_gamma_of_warmup_ema():
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        clip = ClipGradByAdaGC(t_start=20, init="warmup_ema", lambda_rel=0.9)
    assert not said(messages, "gamma can only shrink")
    feed = make_fed(clip)
    for _ in range(20):
        feed(1.0)
    for _ in range(200):
        gamma = feed(2.0)
    assert 1.5 < gamma <= 2.0
