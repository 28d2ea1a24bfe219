# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a buffer are found in it; others are left alone."""

import numpy as np
import paddle
from helpers import make_parameters
from paddle import _C_ops

from paddle_adagc.parallel.layout import FusedBuffers


def test_a_buffer_is_replaced_by_its_parameters():
    (buffer,) = make_parameters([[10]])
    first = _C_ops.view_shape(_C_ops.view_slice(buffer, 0, 6), [2, 3])
    second = _C_ops.view_slice(buffer, 6, 10)
    (alone,) = make_parameters([[2]])
    gradient, other = paddle.arange(10.0), paddle.ones([2])
    buffers = FusedBuffers([first, second, alone])
    pairs = [(buffer, gradient), (alone, other)]
    found = buffers.unfold(pairs, known={alone.name})
    assert [p.data_ptr() for p, _ in found] == [
        tensor.data_ptr() for tensor in (first, second, alone)
    ]
    np.testing.assert_array_equal(
        found[0][1].numpy(), np.arange(6.0).reshape([2, 3])
    )
    np.testing.assert_array_equal(found[1][1].numpy(), np.arange(6.0, 10.0))
    assert found[2][1] is other


def test_a_parameter_in_no_buffer_is_itself():
    (parameter,) = make_parameters([[2]])
    pairs = [(parameter, paddle.ones([2]))]
    assert FusedBuffers().unfold(pairs, known=()) == pairs
