# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounding to blocks of e4m3 against ml_dtypes, bit by bit."""

import numpy as np
import paddle
import pytest
from reference import fp8 as reference

from paddle_adagc.lab.models.fp8.emulated import (
    round_columns,
    round_rows,
    round_squares,
)

ROUNDINGS = {
    (1, 128): round_rows,
    (128, 1): round_columns,
    (128, 128): round_squares,
}
BLOCKS = list(ROUNDINGS)


def dequantized(payload, scales, block):
    """What payload and scales stand for."""
    spread = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)
    rows, columns = payload.shape
    values = payload.view(reference.E4M3).astype(np.float32)
    return values * spread[:rows, :columns]


def assert_same_bits(x, block):
    """Rounded values are payload times scale of the reference, all bits."""
    rounded = ROUNDINGS[block](paddle.to_tensor(x)).numpy()
    expected = dequantized(*reference.quantize(x, block), block)
    np.testing.assert_array_equal(rounded, expected)
    zeros = rounded == 0
    bits, wanted = rounded.view(np.uint32), expected.view(np.uint32)
    np.testing.assert_array_equal(bits[~zeros], wanted[~zeros])


def every_bfloat16():
    """All finite values of bfloat16, as float32."""
    bits = np.arange(65536, dtype=np.uint32) << 16
    values = bits.view(np.float32)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 64), (128, 128), (130, 257), (384, 200), (5, 300)]
)
def test_blocks_of_any_shape(block, shape):
    rng = np.random.default_rng(list(shape))
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 4, (shape[0], 1))
    x[rng.random(shape) < 0.1] = 0.0
    assert_same_bits(x.astype(np.float32), block)


@pytest.mark.parametrize("block", BLOCKS)
def test_zero_blocks_stay_zero(block):
    x = np.zeros((256, 256), np.float32)
    x[:128, :128] = np.random.default_rng(0).standard_normal((128, 128))
    assert_same_bits(x, block)
    assert_same_bits(np.zeros((7, 9), np.float32), block)


@pytest.mark.parametrize("largest", [448.0, 449.0, 1.0, 3e-20, 3.2e32])
def test_every_bfloat16_under_a_given_scale(largest):
    values = every_bfloat16()
    x = np.full((len(values), 2), largest, np.float32)
    x[:, 0] = values
    x = x[np.abs(values) <= largest]
    assert len(x) > 5000
    assert_same_bits(x, (1, 128))


def test_ties_and_their_neighbours():
    codes = np.arange(256, dtype=np.uint8).view(reference.E4M3)
    values = np.unique(codes[~np.isnan(codes)].astype(np.float32))
    ties = (values[1:] + values[:-1]) / 2
    edges = np.concatenate(
        [
            values,
            ties,
            np.nextafter(ties, np.float32(np.inf)),
            np.nextafter(ties, np.float32(-np.inf)),
        ]
    )
    # The first element pins the scale to 1.
    x = np.stack([np.full_like(edges, 448.0), edges], axis=1)
    assert_same_bits(x, (1, 128))


def test_scale_at_the_edges_of_a_power_of_two():
    edge = np.float32(1.75) * np.float32(2.0) ** np.arange(-110, 107)
    largest = np.concatenate(
        [
            edge,
            np.nextafter(edge, np.float32(np.inf)),
            np.nextafter(edge, np.float32(0)),
        ]
    ).astype(np.float32)[:, None]
    # Values around e4m3's smallest ones tell which scale was taken.
    small = np.random.default_rng(6).uniform(-(2.0**-13), 2.0**-13, 60)
    x = largest * np.concatenate([[1.0], small]).astype(np.float32)
    assert_same_bits(x, (1, 128))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_holds_the_result(dtype):
    rng = np.random.default_rng(5)
    x = paddle.to_tensor(rng.standard_normal((9, 200)).astype(np.float32))
    x = x.astype(dtype)
    rounded = round_rows(x)
    assert rounded.dtype == x.dtype
    expected = round_rows(x.astype("float32")).numpy()
    np.testing.assert_array_equal(rounded.astype("float32").numpy(), expected)


def test_non_finite_values_are_not_hidden():
    x = np.ones((4, 256), np.float32)
    x[1, 3], x[2, 200], x[3, 5] = np.inf, -np.inf, np.nan
    assert np.isnan(round_rows(paddle.full([1, 1], 4e32)).numpy()).all()
    rounded = round_rows(paddle.to_tensor(x)).numpy()
    expected = np.ones((4, 256), bool)
    expected[1, :128] = expected[2, 128:] = expected[3, :128] = False
    np.testing.assert_array_equal(np.isfinite(rounded), expected)
    assert np.isnan(rounded[~expected]).all()
