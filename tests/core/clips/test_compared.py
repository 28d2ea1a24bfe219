# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the compared clips have of their own: AGC, tensor-wise, global norms."""

from functools import partial

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters
from reference.clips import agc

from paddle_adagc.clips.agc import ClipGradByAGC
from paddle_adagc.clips.compared import (
    ClipGradByGlobalAdaGC,
    ClipGradBySkipStep,
    ClipGradByTensorWiseGC,
    ClipGradByZClip,
)
from paddle_adagc.parallel.topology import Axis, Topology

pytestmark = pytest.mark.usefixtures("backend")


def test_embedding_rows_and_the_final_layer_after_bind():
    model = paddle.nn.Layer()
    model.embed = paddle.nn.Embedding(4, 3)
    model.lm_head = paddle.nn.Linear(3, 4, bias_attr=False)
    clip = ClipGradByAGC()
    clip.bind(model)
    rng = np.random.default_rng(0)
    grads = [rng.normal(size=p.shape) for p in model.parameters()]
    got = clip_arrays(clip, model.parameters(), grads)
    weights = [model.embed.weight.numpy()]
    (expected,) = agc(embeddings=[0])(weights, grads[:1])
    np.testing.assert_allclose(got[0], expected, rtol=1e-5)
    np.testing.assert_allclose(got[1], grads[1].astype("float32"))


def test_metrics_give_the_share_of_the_norm_that_is_left():
    clip = ClipGradByAGC(0.5)
    (parameter,) = make_parameters([[1, 2]])
    parameter.set_value(paddle.to_tensor([[2.0, 100.0]]))
    clip_arrays(clip, [parameter], [np.array([[3.0, 4.0]])])
    (tensor,) = clip.metrics()["tensors"].values()
    assert tensor["h"] == pytest.approx(np.sqrt(1 + 16) / 5)


def test_float64_units_within_the_bound_keep_their_bits():
    (parameter,) = make_parameters([[2, 2]], "float64")
    parameter.set_value(paddle.to_tensor([[1e-9, 1e9], [1e-9, 1e9]], "float64"))
    values = np.full([2, 2], 1.123456789012345)
    gradient = paddle.to_tensor(values)
    ClipGradByAGC()([(parameter, gradient)])
    np.testing.assert_array_equal(gradient.numpy()[:, 1], values[:, 1])
    assert np.linalg.norm(gradient.numpy()[:, 0]) < 1e-4


@pytest.mark.parametrize("split_axis", [None, -2])
def test_split_tensor_has_to_say_along_which_axis(monkeypatch, split_axis):
    topology = Topology(model=Axis(0, 2))
    monkeypatch.setattr(
        "paddle_adagc.parallel.ranks.read_topology", lambda: topology
    )
    model = paddle.nn.Linear(2, 3)
    model.weight.is_distributed = True
    clip = ClipGradByAGC()
    if split_axis is None:
        with pytest.raises(ValueError, match=r"weight is split.*split_axis"):
            clip.bind(model)
    else:
        model.weight.split_axis = split_axis
        clip.bind(model)
        assert clip._tensors.layout[0].split_axis == 0
        stack = paddle.nn.ParameterList(make_parameters([[2, 3, 4]]))
        stack[0].is_distributed, stack[0].split_axis = True, split_axis
        clip = ClipGradByAGC()
        clip.bind(stack, units={"0": "experts"})
        assert [its.split_axis for its in clip._tensors.layout] == [0, 0]


def test_only_clipped_tensors_count():
    model = paddle.nn.Sequential(
        paddle.nn.Linear(3, 2), paddle.nn.Linear(2, 5, bias_attr=False)
    )
    model[0].bias.need_clip = False
    model[1].weight.stop_gradient = True
    clip = ClipGradByTensorWiseGC(1.0)
    clip.bind(model)
    assert clip.metrics()["step"] == -1
    pairs = [
        (model[0].weight, paddle.ones([3, 2])),
        (model[0].bias, paddle.ones([2])),
    ]
    clip(pairs)
    np.testing.assert_allclose(np.linalg.norm(pairs[0][1].numpy()), 1.0, 1e-6)
    np.testing.assert_array_equal(pairs[1][1].numpy(), [1.0, 1.0])


def test_layer_unfrozen_after_bind_takes_another_bind():
    model = paddle.nn.Linear(2, 2)
    model.bias.stop_gradient = True
    clip = ClipGradByTensorWiseGC(1.0)
    clip.bind(model)
    clip([(model.weight, paddle.ones([2, 2]))])
    model.bias.stop_gradient = False
    gradients = [paddle.full([2, 2], 9.0), paddle.full([2], 9.0)]
    pairs = [*zip(model.parameters(), gradients, strict=True)]
    with pytest.raises(RuntimeError, match=r"bias was frozen.*bind\(model\)"):
        clip(pairs)
    assert (gradients[1].numpy() == 9.0).all()
    clip.bind(model)
    clip(pairs)
    norms = [np.linalg.norm(g.numpy()) for g in gradients]
    np.testing.assert_allclose(norms, [4 / 6, 2 / 6], rtol=1e-6)


def test_a_tensor_seen_later_joins_the_total():
    clip = ClipGradByTensorWiseGC(1.0)
    first, second = make_parameters([[4], [4]])
    (alone,) = clip_arrays(clip, [first], [np.full(4, 5.0)])
    np.testing.assert_allclose(np.linalg.norm(alone), 1.0, rtol=1e-6)
    both = clip_arrays(clip, [first, second], [np.full(4, 5.0)] * 2)
    np.testing.assert_allclose(np.linalg.norm(both, axis=1), 0.5, rtol=1e-6)


def kept_by(clip):
    state = clip.state_dict()
    return {k: float(state[k]["global"]) for k in ("count", "mean", "variance")}


def test_a_step_without_gradient_is_no_observation():
    clip = ClipGradByZClip(warmup_steps=2, max_grad_norm=None)
    parameters = make_parameters([[2]])
    for value in (1.0, 0.0, 3.0):
        (out,) = clip_arrays(clip, parameters, [np.array([value, 0.0])])
        np.testing.assert_array_equal(out, [value, 0.0])
    assert kept_by(clip) == {"count": 2.0, "mean": 2.0, "variance": 1.0}


@pytest.mark.parametrize("lost", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize(
    "make",
    [
        partial(ClipGradByGlobalAdaGC, t_start=0),
        partial(ClipGradByGlobalAdaGC, t_start=99, lambda_abs=100.0),
        partial(ClipGradByZClip, warmup_steps=1),
        partial(ClipGradByZClip, warmup_steps=8),
        partial(ClipGradBySkipStep, window=4),
    ],
)
def test_norm_without_a_lost_tensor_is_no_observation(make, lost):
    parameters = make_parameters([[2], [1]])
    clip, untouched = make(), make()
    for step in range(6):
        usual = [np.array([3.0 - 0.1 * step, 0.0]), np.array([4.0])]
        clip_arrays(clip, parameters, usual)
        clip_arrays(untouched, parameters, usual)
        clip_arrays(clip, parameters, [np.full(2, lost), usual[1]])
    states = [clip.state_dict(), untouched.state_dict()]
    for state in states:
        del state["step"]
    assert states[0] == states[1]
