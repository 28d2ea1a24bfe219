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
from paddle import Tensor
from paddle.incubate.nn.functional import (
    fp8_gemm_blockwise,
    fp8_quant_blockwise,
)

from adagc_lab.models.fp8.emulated import BLOCK, padded

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


def product(x: Tensor, weight: Tensor, *, transposed: bool = False) -> Tensor:
    """`x @ weight`, or `x @ weight.T`, in bfloat16.

    `x` has 1x128 tiles along its rows, `weight` 128x128 blocks.
    """
    height, width = _REDUCED_MULTIPLE, BLOCK
    if transposed:
        height, width = width, height
    product = fp8_gemm_blockwise(
        *_quantise(weight, height, width, "128x128", not transposed),
        *_quantise(x, BLOCK, _REDUCED_MULTIPLE, "1x128"),
        out_dtype=paddle.bfloat16,
        is_a_1d_scaled=False,
        is_b_1d_scaled=True,
    )
    return product.T[: x.shape[0], : weight.shape[0 if transposed else 1]]


def weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """`x.T @ grad` in float32, both of tiles of 128 along the rows' axis."""
    left, right = (
        _quantise(part, _REDUCED_MULTIPLE, BLOCK, "1x128", True)
        for part in (x, grad)
    )
    return fp8_gemm_blockwise(
        *left,
        *right,
        out_dtype=paddle.float32,
        is_a_1d_scaled=True,
        is_b_1d_scaled=True,
    )[: x.shape[1], : grad.shape[1]]


def _quantise(
    x: Tensor, height: int, width: int, method: str, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """e4m3 values and what they are multiplied by; of `x.T` if `transposed`.

    `x` is padded to multiples of `height` and `width` first.
    """
    return fp8_quant_blockwise(
        padded(x.astype("bfloat16"), height, width).contiguous(),
        quant_method=method,
        input_transpose=transposed,
        return_transpose_only=transposed,
        output_scale_transpose=method == "1x128",
        using_pow2_scale=True,
    )
