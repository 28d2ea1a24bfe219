# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters
from reference.clips import agc

from paddle_adagc.clips.agc import ClipGradByAGC
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
        "paddle_adagc.clips.stateful.read_topology", lambda: topology
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
        assert clip._table.layout[0].split_axis == 0


def test_keys_left_alone_have_to_be_the_model_s():
    model = paddle.nn.Sequential(paddle.nn.Linear(2, 3), paddle.nn.ReLU())
    ClipGradByAGC(unclipped=["0.weight"]).bind(model)
    ClipGradByAGC().bind(model)  # no language model, nothing is left alone
    with pytest.raises(ValueError, match=r"'0\.weights'.*mean '0\.weight'"):
        ClipGradByAGC(unclipped=["0.weights"]).bind(model)
    clip = ClipGradByAGC(unclipped=["0.weight"])
    with pytest.raises(RuntimeError, match="bind"):
        clip_arrays(clip, model.parameters(), [np.ones([2, 3]), np.ones(3)])
