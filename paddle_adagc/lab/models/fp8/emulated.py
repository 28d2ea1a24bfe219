# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
