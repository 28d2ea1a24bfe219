# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same FP8 matrix products on any device, by rounding the operands.

An operand is rounded to what its e4m3 values and scales stand for, then
multiplied in its own dtype: float32 on CPUs, bfloat16 on GPUs, which holds
every such value exactly. Sums are float32 in both cases. So a product is that
of FP8 kernels up to the order of its sums.
"""

import paddle
from paddle import Tensor

from paddle_adagc.lab.models.fp8.rounding import (
    round_columns,
    round_rows,
    round_squares,
)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight`; see `hopper.product`."""
    return paddle.matmul(round_rows(x), round_squares(weight))


def input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """`grad @ weight.T`; see `hopper.input_gradient`."""
    return paddle.matmul(
        round_rows(grad), round_squares(weight), transpose_y=True
    )


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """`x.T @ grad`; see `hopper.weight_gradient`."""
    return paddle.matmul(
        round_columns(x), round_columns(grad), transpose_x=True
    )
