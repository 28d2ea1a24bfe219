# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rounding to blocks of e4m3, bit by bit; FP8 linears, also in a decoder."""

import re

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import FLOAT8_LINEARS
from adagc_lab.models.fp8 import emulated, float8_linear
from adagc_lab.models.fp8.emulated import round_blocks
from lab.models.tiny import build
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


def test_scale_at_the_edges_of_a_power_of_two():
    edge = np.float32(1.75) * np.float32(2.0) ** np.arange(-110, 107)
    edge = edge.astype(np.float32)
    sides = [np.nextafter(edge, np.float32(x)) for x in (-np.inf, np.inf)]
    largest = np.concatenate([edge, *sides])[:, None]
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


SHAPES = [(5, 64, 32), (3, 7, 5), (128, 256, 128), (130, 257, 200)]


def quantize(x, height, width):
    return reference.quantize(np.ascontiguousarray(x), (height, width))


def products(x, weight, grad):
    """Forward, dgrad and wgrad of the reference."""
    return (
        reference.product(quantize(x, 1, 128), quantize(weight, 128, 128)),
        reference.product(quantize(grad, 1, 128), quantize(weight.T, 128, 128)),
        reference.product(quantize(x.T, 1, 128), quantize(grad, 128, 1)),
    )


def layer_products(x, weight, grad):
    """The same of the layer, through autograd."""
    x, weight = paddle.to_tensor(x), paddle.to_tensor(weight)
    x.stop_gradient = weight.stop_gradient = False
    y = float8_linear(x, weight)
    y.backward(paddle.to_tensor(grad))
    return y.numpy(), x.grad.numpy(), weight.grad.numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_integers_are_equal_bit_by_bit(shape):
    """Sums below 2^24 are exact in float32, whatever their order."""
    rng = np.random.default_rng(list(shape))
    tokens, width, out = shape
    sizes = {(tokens, width): 255, (width, out): 200, (tokens, out): 100}
    arrays = [
        rng.integers(-largest, largest + 1, size).astype(np.float32)
        for size, largest in sizes.items()
    ]
    results = layer_products(*arrays)
    for got, expected in zip(results, products(*arrays), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert (results[0] != arrays[0] @ arrays[1]).any()


def watch(monkeypatch, module, name, seen):
    """Call `seen` with the arguments of each call of a function."""
    function = getattr(module, name)

    def call(*arguments, **options):
        seen(*arguments, **options)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, call)


EXPECTED = {
    "attention": r"self_attn\.[qkvo]_proj\.weight",
    "experts": r"(experts\.\d+|shared_experts)\.(gate|up|down)_proj\.weight",
}


@pytest.mark.parametrize("kinds", [["attention"], ["experts"], FLOAT8_LINEARS])
def test_these_linears_go_through_fp8_and_no_others(monkeypatch, kinds):
    model = build("ernie4_5_moe", float8_linears=kinds)
    names = {p.name: name for name, p in model.named_parameters()}
    every = re.compile("|".join([*EXPECTED.values(), "lm_head"]))
    chosen = re.compile("|".join(EXPECTED[k] for k in kinds if k in EXPECTED))
    expected = [name for name in names.values() if chosen.search(name)]
    linears, products = set(), set()

    def seen_linear(x, weight, *_, **__):
        linears.add(names[weight.name])

    def seen_product(x, weight, transposed=False):
        products.add((names[weight.name], transposed))

    watch(monkeypatch, paddle.nn.functional, "linear", seen_linear)
    watch(monkeypatch, emulated, "product", seen_product)
    ids = paddle.to_tensor(np.random.default_rng(0).integers(0, 256, [4, 32]))
    model(ids, ids)[0].backward()
    assert products == {(name, t) for name in expected for t in (False, True)}
    assert linears == {*filter(every.search, names.values())} - {*expected}
