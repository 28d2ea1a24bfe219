# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms and scaling of gradients of every dtype and kind."""

import numpy as np
import paddle
import pytest
from helpers import strided_gradient

from paddle_adagc.clips.gradients import GradientList, squared_norms
from paddle_adagc.kernels import split

pytestmark = pytest.mark.usefixtures("backend")

DTYPES = ["float32", "float64", "bfloat16", "float16"]


def sparse_gradient(rows, dim=4):
    embedding = paddle.nn.Embedding(10, dim, sparse=True)
    embedding(paddle.to_tensor([rows])).sum().backward()
    gradient = embedding.weight.grad
    assert gradient.is_selected_rows()
    return gradient


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [1], [3], [2, 3], [0, 3]])
def test_squared_norm_is_float32_for_every_dtype(dtype, shape):
    norm = squared_norms([paddle.full(shape, 3.0, dtype)])
    assert norm.dtype == paddle.float32
    assert norm.shape == [1]
    assert norm.item() == 9.0 * np.prod(shape)


def test_float16_norm_does_not_overflow():
    gradient = paddle.full([100], 300.0, "float16")
    assert squared_norms([gradient]).item() == pytest.approx(9e6)


def test_missing_gradient_has_norm_zero():
    norm = squared_norms([None, paddle.ones([2]), None])
    np.testing.assert_array_equal(norm.numpy(), [0.0, 2.0, 0.0])


def test_no_gradients_at_all():
    assert squared_norms([]).shape == [0]


@pytest.mark.parametrize("gradients", [[None], [None, paddle.ones([2])]])
def test_norms_are_float32_whatever_the_default_dtype(gradients):
    paddle.set_default_dtype("float64")
    try:
        assert squared_norms(gradients).dtype == paddle.float32
    finally:
        paddle.set_default_dtype("float32")


def test_sparse_gradient_adds_up_repeated_rows_before_the_norm():
    dense = paddle.full([3], 2.0)
    norms = squared_norms([dense, sparse_gradient([1, 2, 2]), None])
    assert norms.tolist() == [12.0, 4 * (1 + 2**2), 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [3], [2, 3], [0, 3]])
def test_scale_in_place(dtype, shape):
    gradient = paddle.full(shape, 3.0, dtype)
    version = gradient.inplace_version
    GradientList([gradient]).scale_(paddle.to_tensor([0.5]), None)
    assert 0 in shape or gradient.inplace_version > version
    assert str(gradient.dtype).endswith(dtype)
    assert gradient.shape == shape
    np.testing.assert_array_equal(gradient.astype("float32").numpy(), 1.5)


def test_low_precision_is_scaled_in_float32_and_rounded_once():
    # 0.7 in bfloat16 is 0.69921875: scaling by that would give 178, not 180.
    gradient = paddle.full([1], 257.0, "float32").astype("bfloat16")
    exact = gradient.astype("float32") * 0.7
    GradientList([gradient]).scale_(paddle.to_tensor([0.7]), None)
    assert gradient.astype("float32").item() == (
        exact.astype("bfloat16").astype("float32").item()
    )


def test_discarded_gradient_becomes_zero_in_spite_of_nan():
    hit = paddle.to_tensor([np.nan, np.inf, 1.0], "float32")
    scalar, sound = paddle.full([], np.nan), paddle.ones([2])
    GradientList([hit, None, sound, scalar]).scale_(
        paddle.to_tensor([0.0, 1.0, 0.5, 0.0]),
        paddle.to_tensor([True, True, False, True]),
    )
    np.testing.assert_array_equal(hit.numpy(), [0.0, 0.0, 0.0])
    assert (scalar.shape, scalar.item()) == ([], 0.0)
    np.testing.assert_array_equal(sound.numpy(), [0.5, 0.5])


@pytest.mark.parametrize("discard", [False, True])
def test_sparse_gradient_stays_sparse(discard):
    gradient = sparse_gradient([1, 2, 2])
    GradientList([gradient]).scale_(
        paddle.to_tensor([0.5]), paddle.to_tensor([discard])
    )
    assert gradient.is_selected_rows()
    expected = 0.0 if discard else 0.25 * 4 * (1 + 2**2)
    assert squared_norms([gradient]).item() == expected


def test_each_gradient_goes_to_the_first_backend_that_can_take_it(backend):
    dense, (_, strided) = paddle.full([2], 2.0), strided_gradient(1.0)
    parts = split([dense, None, strided])
    taken = [t is not None for t in parts[-1]._tensors]
    assert taken == [backend == "operators", False, True]
    expected = [8.0, 0.0, (strided.numpy() ** 2).sum()]
    norms = sum(part.squared_norms().numpy() for part in parts)
    np.testing.assert_allclose(norms, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("discard", [None, False, True])
def test_strided_gradient(dtype, discard):
    _, gradient = strided_gradient(np.nan if discard else 1.0, dtype)
    before = gradient.astype("float32").numpy()
    address = gradient.data_ptr()
    flag = None if discard is None else paddle.to_tensor([discard])
    listed = GradientList([gradient])
    squared_norm = listed.squared_norms().numpy()
    np.testing.assert_allclose(squared_norm, [np.sum(before**2)], rtol=1e-6)
    listed.scale_(paddle.to_tensor([0.5]), flag)
    assert gradient.data_ptr() == address
    assert not gradient.is_contiguous()
    after = gradient.astype("float32").numpy()
    np.testing.assert_array_equal(after, 0 if discard else 0.5 * before)
