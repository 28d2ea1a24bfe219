# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How Paddle's FP8 kernels are called: shapes, layouts, paddings.

The kernels need a Hopper GPU. Stand-ins that check what the kernels ask for,
and compute what they are documented to, take their place.
"""

import numpy as np
import paddle
import pytest
from adagc_lab.models.fp8 import emulated, hopper
from reference import fp8 as reference

BLOCKS = {"1x128": (1, 128), "128x128": (128, 128)}


def fake_quant(
    x,
    *,
    quant_method,
    input_transpose,
    return_transpose_only,
    output_scale_transpose,
    using_pow2_scale,
):
    assert x.dtype == paddle.bfloat16
    assert x.is_contiguous()
    assert x.shape[0] % 128 == 0
    assert x.shape[1] % 128 == 0
    assert using_pow2_scale
    assert return_transpose_only == input_transpose
    values = x.astype("float32").numpy()
    if input_transpose:
        values = np.ascontiguousarray(values.T)
    payload, scales = reference.quantize(values, BLOCKS[quant_method])
    if output_scale_transpose:
        scales = np.ascontiguousarray(scales.T)
    return (
        paddle.to_tensor(payload).view("float8_e4m3fn"),
        paddle.to_tensor(scales),
    )


def fake_gemm(
    a, a_scale, b, b_scale, *, out_dtype, is_a_1d_scaled, is_b_1d_scaled
):
    (rows, length), (columns, other_length) = a.shape, b.shape
    assert length == other_length
    assert rows % 4 == 0
    assert columns % 4 == 0
    assert out_dtype in (paddle.bfloat16, paddle.float32)
    # The orders that Paddle's tests and PaddleFormers use.
    assert (is_a_1d_scaled, is_b_1d_scaled) in ((False, True), (True, True))
    assert b_scale.shape == [length // 128, columns]
    if is_a_1d_scaled:
        assert a_scale.shape == [length // 128, rows]
    else:
        assert a_scale.shape == [rows // 128, length // 128]
        assert length // 128 % 4 == 0  # the stride of its rows
    left, right = a.view("uint8").numpy(), b.view("uint8").numpy()
    scales = b_scale.numpy()
    if is_a_1d_scaled:
        out = reference.product((left, a_scale.numpy().T), (right.T, scales))
    else:
        out = reference.product((right, scales.T), (left.T, a_scale.numpy().T))
        out = out.T
    return paddle.to_tensor(out.astype(np.float32)).astype(out_dtype)


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(hopper, "fp8_quant_blockwise", fake_quant)
    monkeypatch.setattr(hopper, "fp8_gemm_blockwise", fake_gemm)


def operands(num_tokens, width, out):
    rng = np.random.default_rng([num_tokens, width, out])
    return [
        paddle.to_tensor(rng.standard_normal(size).astype(np.float32)).astype(
            "bfloat16"
        )
        for size in ((num_tokens, width), (width, out), (num_tokens, out))
    ]


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ("bfloat16", (3, 64, 32)),
        ("float16", (200, 520, 130)),
        ("float32", (128, 512, 512)),
    ],
)
def test_products_equal_the_emulated_ones(kernels, given, shape):
    x, weight, grad = (part.astype(given) for part in operands(*shape))
    for name, left, right, how, dtype in (
        ("product", x, weight, {}, paddle.bfloat16),
        ("product", grad, weight, {"transposed": True}, paddle.bfloat16),
        ("weight_gradient", x, grad, {}, paddle.float32),
    ):
        got = getattr(hopper, name)(left, right, **how)
        assert got.dtype == dtype, name
        expected = getattr(emulated, name)(
            left.astype("float32"), right.astype("float32"), **how
        ).numpy()
        got = got.astype("float32").numpy()
        assert got.shape == expected.shape, name
        tolerance = 2.0**-8 if dtype == paddle.bfloat16 else 1e-5
        np.testing.assert_allclose(
            got,
            expected,
            rtol=tolerance,
            atol=1e-6 * np.abs(expected).max(),
            err_msg=name,
        )


@pytest.mark.parametrize(
    ("device", "cuda", "capability", "available"),
    [
        ("gpu:0", "12.9", (9, 0), True),
        ("gpu:0", "12.6", (9, 0), False),
        ("gpu:0", "12.9", (8, 0), False),
        ("gpu:0", "12.9", (10, 0), False),
        ("gpu:0", "False", None, False),  # ROCm
        ("cpu", "12.9", (9, 0), False),
    ],
)
def test_device_decides(monkeypatch, device, cuda, capability, available):
    is_rocm = cuda == "False"
    for owner, name, value in (
        (paddle.device, "is_compiled_with_cuda", True),
        (paddle.device, "is_compiled_with_rocm", is_rocm),
        (paddle.device, "get_device", device),
        (paddle.device.cuda, "get_device_capability", capability),
        (paddle.version, "cuda", cuda),
    ):
        monkeypatch.setattr(owner, name, lambda value=value: value)
    assert hopper.is_available.__wrapped__() is available
