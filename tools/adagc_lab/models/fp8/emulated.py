# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The FP8 products of Hopper on any device, by rounding the operands.

An operand is rounded to what its e4m3 values and scales stand for, then
multiplied in its own dtype: float32 on CPUs, bfloat16 on GPUs, which holds
every such value exactly. Sums are float32 in both cases. So a product is that
of FP8 kernels up to the order of its sums. It takes no step through e4m3:
Paddle's cast on a CPU makes 448 of NaN and NaN of values between 464 and 480.

A scale is the largest power of two that keeps the block within +-448, as in
Paddle's `fp8_quant_blockwise` (`using_pow2_scale=True`), whose values these
are, bit by bit. Where the two differ:

- a block with NaN is NaN here, where the kernel leaves NaN in its place (with
  an infinite value it is NaN in both);
- values from 2^108 (3.2e32) on are NaN;
- the kernel's scale stops at 2^127, so it loses bits of blocks whose largest
  value is below 1.32e-36; here blocks below 1.7e-34 keep four bits of every
  value;
- a negative value that rounds to zero is +0 here.
"""

import functools

import paddle
import paddle.nn.functional as F
from paddle import Tensor

BLOCK = 128  # elements of a block along each axis that it spans

# x + c - c is x in whole units, ties to even, where c is 1.5 * 2^23 units. A
# unit of e4m3 is an eighth of the power of two below the value.
_SHIFT = 1.5 * 2.0**23 / 8
# The next float32 below 8 / 7: the power of two below this times the largest
# value is 2^8 times what is scaled to 1, as 448 is 1.75 * 2^8.
_TO_SCALE = 1.1428570747375488
# From there to e4m3's smallest normal value, 2^-6: below it units are equal.
_TO_SMALLEST_NORMAL = _TO_SCALE * 2.0**-8 * 2.0**-6


def round_blocks(x: Tensor, height: int, width: int) -> Tensor:
    """Round [rows, columns] to e4m3 times a scale for each block.

    To nearest and ties to even. Blocks at the edges may be smaller; the dtype
    stays.
    """
    height, width = min(height, x.shape[0]), min(width, x.shape[1])
    wide = _padded(x.astype("float32"), height, width)
    rows, columns = wide.shape
    view = wide.reshape([rows // height, height, columns // width, width])
    axes = [axis for axis in (1, 3) if view.shape[axis] > 1] or [3]
    size = view.abs()
    smallest = size.max(axes, keepdim=True) * _TO_SMALLEST_NORMAL
    size = paddle.maximum(size, smallest.expand(view.shape))
    shift = _power_of_two_below(size) * _SHIFT
    rounded = ((view + shift) - shift).reshape(wide.shape)
    if wide.shape != x.shape:
        rounded = rounded[: x.shape[0], : x.shape[1]]
    return rounded.astype(x.dtype)


def _power_of_two_below(x: Tensor) -> Tensor:
    """Largest power of two not above `|x|`; 0 of subnormals, inf of NaN."""
    exponents = _exponent_bits().expand(x.shape)
    return paddle.bitwise_and(x.view("int32"), exponents).view("float32")


@functools.cache
def _exponent_bits() -> Tensor:
    return paddle.full([1], 0x7F800000, "int32")


def _padded(x: Tensor, height: int, width: int) -> Tensor:
    """`x` with zeros up to multiples of a block's size."""
    rows, columns = -x.shape[0] % height, -x.shape[1] % width
    return F.pad(x, [0, rows, 0, columns]) if rows or columns else x


def product(x: Tensor, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """`x @ weight`, or `x @ weight.T`.

    `x` has 1x128 tiles along its rows, `weight` 128x128 blocks.
    """
    tiles = round_blocks(x, 1, BLOCK)
    blocks = round_blocks(weight, BLOCK, BLOCK)
    return paddle.matmul(tiles, blocks, transpose_y=transposed)


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """`x.T @ grad`, both of tiles of 128 along the rows' axis."""
    left, right = (round_blocks(part, BLOCK, 1) for part in (x, grad))
    return paddle.matmul(left, right, transpose_x=True)
