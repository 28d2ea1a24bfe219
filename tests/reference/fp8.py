# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Block-wise FP8 products in NumPy and ml_dtypes, one block at a time.

Written from the definition of Paddle's `fp8_quant_blockwise` and of the
product of DeepSeek-V3, without any code of the package: e4m3 by ml_dtypes'
cast, a scale for every block, the sum of each block of 128 before its scales.
"""

import math

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn


def quantize(x, block):
    """e4m3 payload of the shape of `x`, and the scales that undo it.

    Args:
        x: [rows, columns], float32.
        block: Height and width of a block; the last ones may be smaller.

    Returns:
        uint8 payload, and float32 scales [blocks down, blocks across].
    """
    height, width = block
    payload = np.zeros(x.shape, np.uint8)
    down = math.ceil(x.shape[0] / height)
    across = math.ceil(x.shape[1] / width)
    scales = np.zeros((down, across), np.float32)
    for i in range(down):
        for j in range(across):
            at = np.s_[
                i * height : (i + 1) * height, j * width : (j + 1) * width
            ]
            scale = _scale(np.abs(x[at]).max())
            payload[at] = (x[at] * scale).astype(E4M3).view(np.uint8)
            scales[i, j] = np.float32(1) / scale
    return payload, scales


def _scale(largest):
    if largest == 0:
        return np.float32(1)
    exact = np.float32(448) / np.float32(largest)
    return np.float32(2.0 ** min(math.frexp(float(exact))[1] - 1, 127))


def product(a, b):
    """`a @ b` of two quantised operands, both blocked along the sum by 128.

    Args:
        a: Payload [M, K] and scales [M or M / 128, K / 128].
        b: Payload [K, N] and scales [K / 128, N or N / 128].

    Returns:
        [M, N] float64: sums of each block, times both scales.
    """
    a_payload, a_scales = a
    b_payload, b_scales = b
    rows, columns = a_payload.shape[0], b_payload.shape[1]
    left = a_payload.view(E4M3).astype(np.float64)
    right = b_payload.view(E4M3).astype(np.float64)
    out = np.zeros((rows, columns))
    for k in range(a_scales.shape[1]):
        part = np.s_[k * 128 : (k + 1) * 128]
        by_row = _spread(a_scales[:, k], rows)
        by_column = _spread(b_scales[k], columns)
        out += (left[:, part] @ right[part]) * np.outer(by_row, by_column)
    return out


def _spread(scales, size):
    """One scale for each of `size` rows."""
    scales = scales.astype(np.float64)
    return scales if len(scales) == size else np.repeat(scales, 128)[:size]
