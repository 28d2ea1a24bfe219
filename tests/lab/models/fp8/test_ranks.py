# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 linears on two tensor-parallel ranks against one process."""

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.fp8.linear import Float8Linear, is_float8
from paddle_adagc.lab.models.layers import column_linear, row_linear

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
    column = column_linear(CONFIG, WIDTH, INNER, is_split_sequence, "mlp")
    row = row_linear(CONFIG, INNER, WIDTH, is_split_sequence, "mlp")
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
