# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 matrix products of Hopper GPUs, through Paddle's own kernels.

`paddle.incubate.nn.functional.fp8_quant_blockwise` and `fp8_gemm_blockwise`
(cuBLASLt, CUDA 12.8 or newer, compute capability 9.0) of paddlepaddle 3.3.1.
The product is `a @ b.T` of a [M, K] and b [N, K]. What they need, and how it
is met here:

- bfloat16 to quantise: other types are cast first;
- whole 128x128 blocks to transpose or to scale in two dimensions, and M and N
  that are multiples of 4: operands are padded with zeros to multiples of 128;
- rows of a two-dimensional scale that are multiples of 4 floats apart: K is
  padded to a multiple of 512;
- one-dimensional scales as [K / 128, M], two-dimensional as [N / 128, K / 128];
- no two operands with two-dimensional scales; the one that has them comes
  first, as in Paddle's own tests: `x @ w` is computed as `(w.T @ x.T).T`;
- bfloat16 or float32 as the product's type, never float16.

Zeros at the end of a block change neither its scale nor the product.
"""

import functools

import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.incubate.nn.functional import (
    fp8_gemm_blockwise,
    fp8_quant_blockwise,
)

from paddle_adagc.lab.models.fp8.emulated import BLOCK

_REDUCED_MULTIPLE = 4 * BLOCK


@functools.cache
def is_available() -> bool:
    """Whether this process's device has the kernels; decided once."""
    device = paddle.device
    if not device.is_compiled_with_cuda() or device.is_compiled_with_rocm():
        return False
    if not device.get_device().startswith("gpu"):
        return False
    version = tuple(int(part) for part in paddle.version.cuda().split(".")[:2])
    major, _ = device.cuda.get_device_capability()
    return version >= (12, 8) and major == 9


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight` in bfloat16, of 1x128 tiles along the rows and blocks."""
    return _multiply_by_blocks(
        _quantise(_padded(x, BLOCK, _REDUCED_MULTIPLE), "1x128"),
        _quantise(_padded(weight, _REDUCED_MULTIPLE, BLOCK), "128x128", True),
    )[: x.shape[0], : weight.shape[1]]


def input_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """`grad @ weight.T` in bfloat16; see `product`."""
    return _multiply_by_blocks(
        _quantise(_padded(grad, BLOCK, _REDUCED_MULTIPLE), "1x128"),
        _quantise(_padded(weight, BLOCK, _REDUCED_MULTIPLE), "128x128"),
    )[: grad.shape[0], : weight.shape[0]]


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """`x.T @ grad` in float32, both of tiles of 128 along the rows' axis."""
    left, right = (
        _quantise(_padded(part, _REDUCED_MULTIPLE, BLOCK), "1x128", True)
        for part in (x, grad)
    )
    return fp8_gemm_blockwise(
        *left,
        *right,
        out_dtype=paddle.float32,
        is_a_1d_scaled=True,
        is_b_1d_scaled=True,
    )[: x.shape[1], : grad.shape[1]]


def _padded(x: Tensor, row_multiple: int, column_multiple: int) -> Tensor:
    x = x.astype("bfloat16")
    rows, columns = -x.shape[0] % row_multiple, -x.shape[1] % column_multiple
    if rows or columns:
        x = F.pad(x, [0, rows, 0, columns])
    return x.contiguous()


def _quantise(
    x: Tensor, method: str, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """e4m3 values and what they are multiplied by; of `x.T` if `transposed`."""
    return fp8_quant_blockwise(
        x,
        quant_method=method,
        input_transpose=transposed,
        return_transpose_only=transposed,
        output_scale_transpose=method == "1x128",
        using_pow2_scale=True,
    )


def _multiply_by_blocks(
    tiles: tuple[Tensor, Tensor], blocks: tuple[Tensor, Tensor]
) -> Tensor:
    """`tiles @ blocks.T` of 1x128 tiles and 128x128 blocks, bfloat16."""
    return fp8_gemm_blockwise(
        *blocks,
        *tiles,
        out_dtype=paddle.bfloat16,
        is_a_1d_scaled=False,
        is_b_1d_scaled=True,
    ).T
