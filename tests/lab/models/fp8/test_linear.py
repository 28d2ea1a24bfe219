# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The three products of FP8 linears against the reference, and on ranks."""

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from reference import fp8 as reference

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.fp8 import emulated
from paddle_adagc.lab.models.fp8.linear import (
    Float8Linear,
    float8_linear,
    is_float8,
    multiply_in_float8,
)
from paddle_adagc.lab.models.layers import linear

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


def sizes(num_tokens, width, out):
    """Of x, weight and the output's gradient."""
    return (num_tokens, width), (width, out), (num_tokens, out)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_the_reference(shape):
    rng = np.random.default_rng(list(shape))
    arrays = [
        (rng.standard_normal(size) * scale).astype(np.float32)
        for size, scale in zip(sizes(*shape), (1.0, 0.02, 1e-5), strict=True)
    ]
    arrays[0][:, : shape[1] // 2] = 0.0  # blocks of zeros
    for got, expected in zip(
        layer_products(*arrays), products(*arrays), strict=True
    ):
        assert got.dtype == np.float32
        # float32 sums in another order.
        limit = 1e-6 * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_integers_are_equal_bit_by_bit(shape):
    """Sums below 2^24 are exact in float32, whatever their order."""
    rng = np.random.default_rng(list(shape))
    arrays = [
        rng.integers(-largest, largest + 1, size).astype(np.float32)
        for size, largest in zip(sizes(*shape), (255, 200, 100), strict=True)
    ]
    results = layer_products(*arrays)
    for got, expected in zip(results, products(*arrays), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert (results[0] != arrays[0] @ arrays[1]).any()


def test_no_tokens_are_refused():
    layer = Float8Linear(16, 8, bias_attr=False)
    with pytest.raises(ValueError, match=r"shape \[0, 16\]"):
        layer(paddle.zeros([0, 16]))


def test_an_infinite_input_reaches_the_output_and_the_gradients():
    x = np.ones((4, 8), np.float32)
    x[2, 3] = np.inf
    y, _, grad = layer_products(
        x, np.ones((8, 5), np.float32), np.ones((4, 5), np.float32)
    )
    np.testing.assert_array_equal(np.isfinite(y).all(1), [1, 1, 0, 1])
    np.testing.assert_array_equal(
        np.isfinite(grad).all(1), [1, 1, 1, 0, 1, 1, 1, 1]
    )


def test_products_stay_as_they_are_under_autocast(monkeypatch):
    seen = []
    product = emulated.product

    def look(x, weight):
        seen.append(paddle.amp.is_autocast_enabled())
        return product(x, weight)

    monkeypatch.setattr(emulated, "product", look)
    with paddle.amp.auto_cast(enable=True, level="O1", dtype="bfloat16"):
        float8_linear(paddle.ones([2, 3]), paddle.ones([3, 4]))
    assert seen == [False]


def test_only_gradients_that_are_needed_are_computed(monkeypatch):
    calls = []
    for name in ("input_gradient", "weight_gradient"):
        function = getattr(emulated, name)
        monkeypatch.setattr(
            emulated,
            name,
            lambda *args, name=name, function=function: (
                calls.append(name) or function(*args)
            ),
        )
    for frozen_x in (True, False):
        x, weight = paddle.ones([2, 3]), paddle.ones([3, 4])
        x.stop_gradient, weight.stop_gradient = frozen_x, not frozen_x
        float8_linear(x, weight).sum().backward()
        assert (x.grad is None) == frozen_x
        assert (weight.grad is None) != frozen_x
    assert calls == ["weight_gradient", "input_gradient"]


def test_bias_is_refused():
    layer = Float8Linear(4, 2)
    with pytest.raises(ValueError, match="bias"):
        layer(paddle.ones([1, 4]))


@pytest.mark.parametrize(
    "name", ["mp_async_allreduce", "sp_async_reduce_scatter"]
)
def test_layers_that_multiply_on_their_own_are_refused(name):
    layer = paddle.nn.Linear(4, 2)
    setattr(layer, name, True)
    with pytest.raises(ValueError, match=name):
        multiply_in_float8(layer)


TOKENS, WIDTH, INNER = 24, 130, 256
CONFIG = DecoderConfig(float8_linears=["mlp"])


def arrays():
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((2, TOKENS // 2, WIDTH)).astype(np.float32),
        "column": rng.standard_normal((WIDTH, INNER)).astype(np.float32),
        "row": rng.standard_normal((INNER, WIDTH)).astype(np.float32),
        "grad": rng.standard_normal((2, TOKENS // 2, WIDTH)).astype(np.float32),
    }


def column_then_row(rank=0, num_ranks=1, is_split_sequence=False):
    """Output and gradients of `row(column(x))`, of this rank's part."""
    values = arrays()
    part = np.s_[rank * INNER // num_ranks : (rank + 1) * INNER // num_ranks]
    split = {"kind": "mlp", "along_sequence": is_split_sequence}
    column = linear(CONFIG, WIDTH, INNER, "columns", **split)
    row = linear(CONFIG, INNER, WIDTH, "rows", **split)
    column.weight.set_value(values["column"][:, part])
    row.weight.set_value(values["row"][part])
    x, grad = values["x"], values["grad"]
    if is_split_sequence:  # [length, batch, width], shared out by length
        x, grad = (
            np.ascontiguousarray(
                np.split(array.swapaxes(0, 1), num_ranks)[rank]
            )
            for array in (x, grad)
        )
    x = paddle.to_tensor(x)
    x.stop_gradient = False
    y = row(column(x))
    y.backward(paddle.to_tensor(grad))
    results = [y, x.grad, column.weight.grad, row.weight.grad]
    assert is_float8(column)
    assert is_float8(row)
    return type(column).__name__, [tensor.numpy() for tensor in results]


def on_two_ranks():
    topology = start_fleet(mp=2)
    rank = topology.get_model_parallel_rank()
    return [
        column_then_row(rank, 2, is_split_sequence)
        for is_split_sequence in (False, True)
    ]


@pytest.fixture(scope="module")
def ranks():
    return run_on_ranks(on_two_ranks, 2)


def assert_equal(parts, expected):
    """Equal up to the order of float32 sums."""
    for got, wanted in zip(parts, expected, strict=True):
        np.testing.assert_allclose(
            got, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max()
        )


@pytest.mark.slow
def test_ranks_that_split_at_128_equal_one_process(ranks):
    kind, (y, x_grad, column_grad, row_grad) = column_then_row()
    assert kind == Float8Linear.__name__
    for rank in ranks:
        kind, results = rank[0]
        assert kind == "ColumnParallelLinear"
        assert_equal(results[:2], (y, x_grad))
    assert_equal(
        [
            np.concatenate([rank[0][1][2] for rank in ranks], 1),
            np.concatenate([rank[0][1][3] for rank in ranks], 0),
        ],
        (column_grad, row_grad),
    )


@pytest.mark.slow
def test_sequence_parallel_ranks_equal_one_process(ranks):
    """All tokens are in one block, so their order does not matter."""
    _, (y, x_grad, column_grad, row_grad) = column_then_row()
    assert ranks[0][1][0] == "ColumnSequenceParallelLinear"
    results = [rank[1][1] for rank in ranks]
    assert_equal(
        [
            np.concatenate([r[0] for r in results]).swapaxes(0, 1),
            np.concatenate([r[1] for r in results]).swapaxes(0, 1),
            np.concatenate([r[2] for r in results], 1),
            np.concatenate([r[3] for r in results], 0),
        ],
        (y, x_grad, column_grad, row_grad),
    )


def test_gradients_of_two_micro_batches_add_up():
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((48, 24)).astype(np.float32)
    parts = [
        (
            rng.standard_normal((40, 48)).astype(np.float32),
            rng.standard_normal((40, 24)).astype(np.float32),
        )
        for _ in range(2)
    ]
    accumulated = paddle.to_tensor(weight)
    accumulated.stop_gradient = False
    for x, grad in parts:
        y = float8_linear(paddle.to_tensor(x), accumulated)
        y.backward(paddle.to_tensor(grad))
    alone = [layer_products(x, weight, grad)[2] for x, grad in parts]
    np.testing.assert_array_equal(accumulated.grad.numpy(), sum(alone))
