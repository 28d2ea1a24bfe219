# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer for 100 steps: against NumPy twins and other packages."""

from functools import partial
from pathlib import Path

import numpy as np
import paddle
import pytest
from core.optimizers.runs import (
    SHAPES,
    draw_gradients,
    draw_weights,
    make_weights,
    run,
)
from helpers import assert_equal
from reference import optimizers as twins

from paddle_adagc.lab.optimizers import SPAM, ClippedAdamW, StableAdamW
from paddle_adagc.lab.optimizers.update_clips import AGC, Clippy, RMSClip
from paddle_adagc.optimizers import Lion, Muon
from paddle_adagc.optimizers.base import square_root

LR = 0.01


def assert_is_twin(make, make_twin):
    parameters = make_weights()
    got = run(make(LR, parameters=parameters), parameters, range(100))
    weights, of_tensors = draw_weights(), [make_twin(lr=LR) for _ in SHAPES]
    for step in range(100):
        tensors = zip(of_tensors, weights, draw_gradients(step), strict=True)
        weights = [twin.step(w, g) for twin, w, g in tensors]
    assert_equal(got, weights, rtol=1e-8, atol=1e-12)


ADAMW = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}
MUON = {"momentum": 0.95, "num_iterations": 5, "weight_decay": 0.1}
MUON |= {"nesterov": True, "scaling": "spectral"}
SPIKES = ("threshold", "reset_interval", "warmup_steps", "clip_start")
RULES = {
    Lion: [
        {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
        {"beta1": 0.95, "beta2": 0.98, "weight_decay": 1.0},
        {"beta1": 0.0, "beta2": 0.5, "weight_decay": 0.1},
    ],
    Muon: [
        MUON,
        {**MUON, "scaling": "rms", "weight_decay": 0.0},
        {**MUON, "nesterov": False, "momentum": 0.8, "num_iterations": 3},
        {**MUON, "scaling": "rms", "nesterov": False, "weight_decay": 1.0},
    ],
    StableAdamW: [
        ADAMW,
        {**ADAMW, "beta2": 0.9, "weight_decay": 0.0},
        {"beta1": 0.5, "beta2": 0.999, "epsilon": 1e-2, "weight_decay": 1.0},
        {**ADAMW, "epsilon": 0.5},  # above many second moments' roots
    ],
    SPAM: [
        {**ADAMW, **dict(zip(SPIKES, values, strict=True))}
        for values in (
            (5000.0, 500, 150, 20),
            (5.0, 30, 10, 5),
            (2.0, 7, 0, 1),
            (4.0, 9, 20, 0),
        )
    ],
}


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [(rule, arguments) for rule, cases in RULES.items() for arguments in cases],
)
def test_equals_the_numpy_twin(rule, arguments):
    twin = getattr(twins, rule.__name__)
    assert_is_twin(partial(rule, **arguments), partial(twin, **arguments))


LOW = {"lambda_rel": 0.02, "lambda_abs": 1e-3}
CLIPS = {
    "AGC": (AGC(), partial(twins.agc, 0.01, 1e-3, False)),
    "AGC of embeddings": (AGC(), partial(twins.agc, 0.01, 1e-3, True)),
    "AGC, paper": (AGC(form="paper"), partial(twins.agc, 1e-3, 0.0, False)),
    "AGC, loose": (AGC(lambda_rel=2.0), partial(twins.agc, 2.0, 1e-3, False)),
    "Clippy": (Clippy(), partial(twins.clippy, 0.1, 1e-7)),
    "Clippy, absolute": (Clippy(**LOW), partial(twins.clippy, 0.02, 1e-3)),
    "Clippy, paper": (
        Clippy(form="paper"),
        partial(twins.clippy_of_paper, 0.01, 0.5),
    ),
    "Clippy, paper's form": (
        Clippy(form="paper", lambda_abs=1e-3),
        partial(twins.clippy_of_paper, 0.01, 1e-3),
    ),
    "RMS": (RMSClip(), partial(twins.rms_clip, 1.0)),
    "RMS, tight": (RMSClip(threshold=0.3), partial(twins.rms_clip, 0.3)),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clipped_adamw(name):
    clip, twin = CLIPS[name]
    is_embedding_fun = (lambda _: True) if "embeddings" in name else None
    clipped = partial(ClippedAdamW, update_clip=clip, **ADAMW)
    assert_is_twin(
        partial(clipped, is_embedding_fun=is_embedding_fun),
        partial(twins.ClippedAdamW, clip=twin, **ADAMW),
    )


def test_unclipped_adamw_is_paddle_s_adamw():
    parameters, others = make_weights(), make_weights()
    clipped = ClippedAdamW(
        LR,
        AGC(),
        apply_clip_param_fun=lambda _: False,
        parameters=parameters,
        **ADAMW,
    )
    adamw = paddle.optimizer.AdamW(LR, parameters=others, **ADAMW)
    weights = run(clipped, parameters, range(20))
    assert_equal(weights, run(adamw, others, range(20)), rtol=1e-6)


def test_square_root_is_correctly_rounded_on_a_cpu():
    x = np.random.default_rng(0).random(1000).astype("float32")
    root = square_root(paddle.to_tensor(x))
    np.testing.assert_array_equal(root.numpy(), np.sqrt(x))


OTHER = {"beta1": 0.5, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.0}
RESETS = {"threshold": 5.0, "reset_interval": 30, "warmup_steps": 0}
RMS = {"momentum": 0.8, "nesterov": False, "scaling": "rms"}
CASES = {
    "lion": (Lion, {"weight_decay": 0.5}),
    "lion, other betas": (Lion, {"beta1": 0.95, "beta2": 0.98}),
    "stable_adamw": (StableAdamW, {"weight_decay": 0.1}),
    "stable_adamw, other betas": (StableAdamW, OTHER),
    "spam": (SPAM, {**RESETS, "epsilon": 1e-12}),
    "muon": (Muon, {}),
    "muon, rms": (Muon, {**RMS, "weight_decay": 0.5}),
    "muon, bfloat16": (Muon, {}),
}


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "golden" / "optimizers.npz") as file:
        return dict(file)


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(golden, case):
    make, arguments = CASES[case]
    parameters = make_weights("float32")
    optimizer = make(LR, parameters=parameters, **arguments)
    # Newton-Schulz in bfloat16 is off by a percent of an update of 0.01.
    tolerance = 2e-2 if "bfloat16" in case else 1e-5
    num_tensors = 3 if make is Muon else len(SHAPES)  # matrices come first
    for first, last in ((0, 10), (10, 50), (50, 100)):
        weights = run(optimizer, parameters, range(first, last))
        expected = [golden[f"{case}/{i}/{last}"] for i in range(num_tensors)]
        assert_equal(
            weights[:num_tensors], expected, rtol=tolerance, atol=tolerance
        )
