# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiled AdamW against Paddle's operator."""

import platform
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import _C_ops

from paddle_adagc.kernels import adamw, build

CPUINFO = Path("/proc/cpuinfo")
HAS_AVX512 = CPUINFO.exists() and " avx512f" in CPUINFO.read_text()
SHAPES = [[1], [7], [64], [7, 301], [64, 48]]


def train(operator, shape, num_steps=30, **options):
    settings = {"beta2": 0.999, "epsilon": 1e-8, "with_decay": True}
    settings |= {"dtype": "float32", "lr_ratio": 1.0, **options}
    rng = np.random.default_rng(0)

    def draw(scale=1.0):
        values = rng.normal(size=shape) * scale
        return paddle.to_tensor(values.astype(settings["dtype"]))

    weight, *moments = draw(), draw(0.0), draw(0.0)
    powers = [
        paddle.to_tensor([beta], settings["dtype"])
        for beta in (0.9, settings["beta2"])
    ]
    for step in range(num_steps):
        operator(
            weight,
            draw(np.exp(5 * rng.normal())),
            paddle.to_tensor(3e-3 * (step + 1) / num_steps, "float32"),
            *moments,
            None,  # AMSGrad's maximum
            *powers,
            None,  # master weight
            None,  # found_inf
            0.9,
            settings["beta2"],
            settings["epsilon"],
            settings["lr_ratio"],
            0.1,
            settings["with_decay"],
            False,  # lazy_mode
            1000,  # rows per thread
            False,  # multi_precision
            False,  # use_global_beta_pow
            False,  # amsgrad
        )
    return [tensor.numpy() for tensor in (weight, *moments, *powers)]


@pytest.mark.parametrize("with_decay", [True, False])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-15])
@pytest.mark.parametrize("beta2", [0.95, 0.999])
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_those_of_paddle(shape, beta2, epsilon, with_decay):
    options = {"beta2": beta2, "epsilon": epsilon, "with_decay": with_decay}
    ours = train(adamw.adamw_, shape, **options)
    theirs = train(adamw._OPERATOR, shape, **options)
    for mine, other in zip(ours, theirs, strict=True):
        if HAS_AVX512:
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="compares x86's instruction sets"
)
def test_every_instruction_set_gives_the_same_bits(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags, results = build.FLAGS, set()
    names = {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}
    features = CPUINFO.read_text().split()
    usable = [name for name, feature in names.items() if feature in features]
    assert len(usable) > 1
    for name in usable:
        other = [flag.replace("native", name) for flag in flags]
        monkeypatch.setattr(build, "FLAGS", other)
        build.load_library.cache_clear()
        weight, *_ = train(adamw.adamw_, [7, 301])
        results.add(weight.tobytes())
    build.load_library.cache_clear()
    assert len(results) == 1


@pytest.mark.parametrize("options", [{"dtype": "float64"}, {"lr_ratio": 0.5}])
def test_what_the_loop_does_not_know_is_paddle_s(monkeypatch, options):
    calls = []

    def operator(*arguments):
        calls.append(arguments)

    monkeypatch.setattr(adamw, "_OPERATOR", operator)
    train(adamw.adamw_, [3], num_steps=2, **options)
    assert len(calls) == 2


def test_replaces_the_operator_of_every_optimizer(monkeypatch):
    monkeypatch.setattr(_C_ops, "adamw_", adamw._OPERATOR)
    assert adamw.replace_adamw()
    calls = []
    monkeypatch.setattr(
        adamw, "load_library", lambda: calls.append(1) or build.load_library()
    )
    layer = paddle.nn.Linear(3, 2)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    layer(paddle.ones([1, 3])).sum().backward()
    optimizer.step()
    assert len(calls) == 2


def test_without_a_compiler_the_operator_stays(monkeypatch):
    monkeypatch.setattr(_C_ops, "adamw_", adamw._OPERATOR)
    monkeypatch.setattr(adamw, "load_library", lambda: None)
    assert not adamw.replace_adamw()
    assert _C_ops.adamw_ is adamw._OPERATOR
