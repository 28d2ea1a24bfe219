# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer for 100 steps, against its NumPy twin."""

from functools import partial

import pytest
from adagc_lab.optimizers import SPAM, ClippedAdamW, Lion, Muon, StableAdamW
from adagc_lab.optimizers.update_clips import AGC, Clippy
from lab.optimizers.runs import assert_is_twin
from reference import optimizers as twins

ADAMW = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}
SPIKES = ("threshold", "reset_interval", "warmup_steps", "clip_start")
MUON = {"momentum": 0.95, "num_iterations": 5, "weight_decay": 0.1}
MUON |= {"nesterov": True, "scaling": "spectral"}
RULES = {
    Lion: [{"beta1": 0.95, "beta2": 0.98, "weight_decay": 1.0}],
    Muon: [
        {**MUON, "scaling": "rms", "weight_decay": 0.0},
        {**MUON, "nesterov": False, "momentum": 0.8, "num_iterations": 3},
    ],
    StableAdamW: [
        ADAMW,
        {**ADAMW, "epsilon": 0.5},  # above many second moments' roots
    ],
    SPAM: [
        {**ADAMW, **dict(zip(SPIKES, values, strict=True))}
        for values in (
            (5.0, 30, 10, 5),
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
    "Clippy": (Clippy(), partial(twins.clippy, 0.1, 1e-7)),
    "Clippy, absolute": (Clippy(**LOW), partial(twins.clippy, 0.02, 1e-3)),
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
