# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters

from paddle_adagc.clips.tensor_wise import ClipGradByTensorWiseGC

pytestmark = pytest.mark.usefixtures("backend")
SHAPES = [[8, 4], [4], [2, 2]]


def test_only_clipped_tensors_count():
    model = paddle.nn.Sequential(
        paddle.nn.Linear(3, 2), paddle.nn.Linear(2, 5, bias_attr=False)
    )
    model[0].bias.need_clip = False
    model[1].weight.stop_gradient = True
    clip = ClipGradByTensorWiseGC(1.0)
    clip.bind(model)
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
