# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounding to blocks of e4m3 against ml_dtypes, bit by bit."""

import numpy as np
import paddle
import pytest
from adagc_lab.models.fp8.emulated import round_blocks
from reference import fp8 as reference

BLOCKS = [(1, 128), (128, 1), (128, 128)]


def assert_same_bits(x, block):
    """Rounded values are payload times scale of the reference, all bits."""
    rounded = round_blocks(paddle.to_tensor(x), *block).numpy()
    payload, scales = reference.quantize(x, block)
    spread = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)
    values = payload.view(reference.E4M3).astype(np.float32)
    expected = values * spread[: x.shape[0], : x.shape[1]]
    np.testing.assert_array_equal(rounded, expected)
    zeros = rounded == 0
    bits, wanted = rounded.view(np.uint32), expected.view(np.uint32)
    np.testing.assert_array_equal(bits[~zeros], wanted[~zeros])


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (130, 257), (384, 200)])
def test_blocks_of_any_shape(block, shape):
    rng = np.random.default_rng(list(shape))
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 4, (shape[0], 1))
    x[rng.random(shape) < 0.1] = 0.0
    x[128:] = 0.0  # whole blocks
    assert_same_bits(x.astype(np.float32), block)


@pytest.mark.parametrize("largest", [448.0, 449.0, 3e-20, 3.2e32])
def test_every_bfloat16_under_a_given_scale(largest):
    bits = np.arange(65536, dtype=np.uint32) << 16
    values = bits.view(np.float32)
    x = np.full((len(values), 2), largest, np.float32)
    x[:, 0] = values
    with np.errstate(invalid="ignore"):
        x = x[np.abs(values) <= largest]
    assert len(x) > 5000
    assert_same_bits(x, (1, 128))


def with_neighbours(values):
    """Float32 values, and the next ones above and below."""
    above = np.nextafter(values, np.float32(np.inf))
    below = np.nextafter(values, np.float32(-np.inf))
    return np.concatenate([values, above, below]).astype(np.float32)


def test_scale_at_the_edges_of_a_power_of_two():
    edge = np.float32(1.75) * np.float32(2.0) ** np.arange(-110, 107)
    largest = with_neighbours(edge.astype(np.float32))[:, None]
    largest = largest[largest[:, 0] < 2.0**108 * 1.75]
    # Values around e4m3's smallest ones tell which scale was taken.
    small = np.random.default_rng(6).uniform(-(2.0**-13), 2.0**-13, 60)
    x = largest * np.concatenate([[1.0], small]).astype(np.float32)
    assert_same_bits(x, (1, 128))


def test_non_finite_values_are_not_hidden():
    assert np.isnan(round_blocks(paddle.full([1, 1], 4e32), 1, 128).item())
    x = np.ones((4, 256), np.float32)
    x[1, 3], x[2, 200], x[3, 5] = np.inf, -np.inf, np.nan
    rounded = round_blocks(paddle.to_tensor(x), 1, 128).numpy()
    expected = np.ones((4, 256), bool)
    expected[[1, 3], :128] = expected[2, 128:] = False
    np.testing.assert_array_equal(np.isfinite(rounded), expected)
    assert np.isnan(rounded[~expected]).all()
