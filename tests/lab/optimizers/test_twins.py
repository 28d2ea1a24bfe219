# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer for 100 steps, against its NumPy twin."""

from functools import partial

import paddle
import pytest
from adagc_lab.optimizers import SPAM, ClippedAdamW, Lion, Muon, StableAdamW
from adagc_lab.optimizers.update_clips import AGC, Clippy
from helpers import assert_equal
from lab.optimizers.runs import assert_is_twin, make_weights, run
from reference import optimizers as twins

ADAMW = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}
SPIKES = ("threshold", "reset_interval", "warmup_steps", "clip_start")
MUON = {"momentum": 0.95, "num_iterations": 5, "weight_decay": 0.1}
MUON |= {"nesterov": True, "scaling": "spectral"}
RULES = {
    Lion: [
        {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
        {"beta1": 0.95, "beta2": 0.98, "weight_decay": 1.0},
    ],
    Muon: [
        MUON,
        {**MUON, "scaling": "rms", "weight_decay": 0.0},
        {**MUON, "nesterov": False, "momentum": 0.8, "num_iterations": 3},
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
        0.01,
        AGC(),
        apply_clip_param_fun=lambda _: False,
        parameters=parameters,
        **ADAMW,
    )
    adamw = paddle.optimizer.AdamW(0.01, parameters=others, **ADAMW)
    weights = run(clipped, parameters, range(20))
    assert_equal(weights, run(adamw, others, range(20)), rtol=1e-6)
