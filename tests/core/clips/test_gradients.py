# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms and scaling of gradients of every dtype and kind."""

import numpy as np
import paddle
import pytest
from helpers import product_rounding, strided_gradient

from paddle_adagc import ClipGradByAdaGC, kernels
from paddle_adagc.clips.gradients import GradientList, split
from paddle_adagc.kernels import operators
from paddle_adagc.kernels.cuda.launch import CHUNK

pytestmark = pytest.mark.usefixtures("backend")

DTYPES = ["float32", "float64", "bfloat16", "float16"]


def sparse_gradient(rows, dim=4):
    embedding = paddle.nn.Embedding(10, dim, sparse=True)
    embedding(paddle.to_tensor([rows], "int64")).sum().backward()
    gradient = embedding.weight.grad
    assert gradient.is_selected_rows()
    return gradient


@pytest.mark.parametrize("discard", [False, True])
def test_sparse_gradient_stays_sparse(discard):
    gradient = sparse_gradient([1, 2, 2])
    GradientList([gradient]).scale_(
        paddle.to_tensor([0.5]), paddle.to_tensor([discard])
    )
    assert gradient.is_selected_rows()
    expected = 0.0 if discard else 0.25 * 4 * (1 + 2**2)
    assert GradientList([gradient]).squared_norms().item() == expected


def test_each_gradient_goes_to_the_first_backend_that_can_take_it(backend):
    _, strided = strided_gradient(1.0)
    gradients = [
        paddle.ones([4, 3]),
        strided,
        None,
        paddle.full([5], 2.0, "bfloat16"),
        sparse_gradient([1, 1], dim=2),
        paddle.full([5], 3.0, "int32").astype("float64"),
    ]
    parts = split([*gradients[:4], None, gradients[5]])
    left = backend == "operators"
    taken = [t is not None for t in parts[-1].tensors]
    assert taken == [left, True, False, left, False, left]
    assert isinstance(parts[0], kernels.BACKENDS[0])
    listed = GradientList(gradients)
    expected = [12.0, float((strided**2).sum()), 0.0, 20.0, 8.0, 45.0]
    np.testing.assert_allclose(listed.squared_norms(), expected, rtol=1e-6)
    listed.scale_(paddle.full([6], 0.5), None)
    again = GradientList(gradients).squared_norms()
    np.testing.assert_allclose(again, np.divide(expected, 4), rtol=1e-6)


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


def make_slice(values, dtype, offset):
    """A view that begins ``offset`` values into its memory."""
    if not values.size:
        return paddle.zeros([0], dtype)
    memory = np.concatenate([np.full(offset, np.nan), values, [np.nan]])
    held = paddle.to_tensor(memory).astype(dtype)
    return held._slice(offset, offset + values.size)


def wide(tensor):
    return tensor.astype("float64").numpy()


def scaled(tensor, h):
    """The product in float32 at least, rounded once to nearest."""
    if tensor.dtype == paddle.float16:  # Paddle 3.1 cuts instead on CPUs
        with np.errstate(over="ignore", invalid="ignore"):
            product = tensor.numpy().astype(np.float32) * np.float32(h)
            return paddle.to_tensor(product.astype(np.float16))
    if tensor.dtype == paddle.float64:
        return tensor * paddle.to_tensor(h, "float64")
    return (tensor.astype("float32") * paddle.to_tensor(h)).astype(tensor.dtype)


SIZES = [0, 1, 7, 8, 9, 31, 511, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_norms_and_scales_of_every_size_and_alignment(backend, dtype, offset):
    rng = np.random.default_rng(offset)
    values = [rng.normal(size=n) * 10.0 ** rng.integers(-2, 3) for n in SIZES]
    gradients = [None, *(make_slice(v, dtype, offset) for v in values), None]
    before = [None if g is None else g.clone() for g in gradients]
    listed = GradientList(gradients)
    exact = [0 if g is None else np.sum(wide(g) ** 2) for g in gradients]
    rtol = 3e-6 if backend == "operators" else 1e-6
    np.testing.assert_allclose(listed.squared_norms().numpy(), exact, rtol)
    h = rng.uniform(size=len(gradients)).astype("float32")
    h[::4] = 1.0
    discard = np.arange(len(gradients)) % 5 == 3
    listed.scale_(paddle.to_tensor(h), paddle.to_tensor(discard))
    for i, (gradient, old) in enumerate(zip(gradients, before, strict=True)):
        if gradient is None:
            continue
        expected = wide(old if h[i] == 1 else scaled(old, h[i]))
        expected[...] = 0 if discard[i] else expected
        np.testing.assert_allclose(
            wide(gradient), expected, **product_rounding(dtype), err_msg=str(i)
        )


def test_gradients_are_discarded_whatever_is_in_them_or_not_touched(
    monkeypatch,
):
    """``h`` of 1; by the operators where the host can read it, as on a CPU."""
    monkeypatch.setattr(operators, "is_in_host_memory", lambda h: True)
    # A signalling pattern: 1 * x would quieten it.
    bits = paddle.full([9], 0x7FA00001, "int32")
    lost = paddle.to_tensor([np.nan, np.inf, 1.0], "float32")
    scalars = paddle.full([], np.nan), paddle.full([], 2.0)
    GradientList([bits.view("float32"), None, lost, *scalars]).scale_(
        paddle.to_tensor([1.0, 1.0, 1.0, 0.0, 0.5]),
        paddle.to_tensor([False, True, True, True, False]),
    )
    assert bits.tolist() == [0x7FA00001] * 9
    assert lost.tolist() == [0.0, 0.0, 0.0]
    assert [(s.shape, s.item()) for s in scalars] == [([], 0.0), ([], 1.0)]


@pytest.mark.parametrize("size", [0, 1, 3])
def test_vectors_of_another_length_are_refused(size):
    """Before compiled code reads memory that is not theirs."""
    listed = GradientList([paddle.ones([4]), paddle.ones([2])])
    factors = paddle.ones([size])
    with pytest.raises(ValueError, match=r"h is .* shape \[2\]"):
        listed.scale_(factors, None)
    with pytest.raises(ValueError, match=r"discard is .* shape \[2\]"):
        listed.scale_(paddle.ones([2]), factors > 0)
    with pytest.raises(ValueError, match=r"h is .*float64"):
        listed.scale_(paddle.ones([2], "float64"), None)


def test_a_sparse_gradient_without_rows_is_none():
    gradient = sparse_gradient([])
    parameter = paddle.create_parameter([10, 4], "float32")
    clip = ClipGradByAdaGC()
    assert clip([(parameter, gradient)])[0][1] is gradient
    assert clip.metrics()["global_grad_norm"] == 0
