# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lion and Muon for 100 steps: against NumPy twins and other packages."""

from functools import partial

import numpy as np
import paddle
import pytest
from adagc_lab.optimizers.adam import square_root
from core.optimizers.runs import (
    assert_agrees_with_the_reference,
    assert_is_twin,
)
from reference import optimizers as twins

from paddle_adagc.optimizers import Lion, Muon

MUON = {"momentum": 0.95, "num_iterations": 5, "weight_decay": 0.1}
MUON |= {"nesterov": True, "scaling": "spectral"}
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
}


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [(rule, arguments) for rule, cases in RULES.items() for arguments in cases],
)
def test_equals_the_numpy_twin(rule, arguments):
    twin = getattr(twins, rule.__name__)
    assert_is_twin(partial(rule, **arguments), partial(twin, **arguments))


def test_square_root_is_correctly_rounded_on_a_cpu():
    x = np.random.default_rng(0).random(1000).astype("float32")
    root = square_root(paddle.to_tensor(x))
    np.testing.assert_array_equal(root.numpy(), np.sqrt(x))


RMS = {"momentum": 0.8, "nesterov": False, "scaling": "rms"}
CASES = {
    "lion": partial(Lion, weight_decay=0.5),
    "lion, other betas": partial(Lion, beta1=0.95, beta2=0.98),
    "muon": Muon,
    "muon, rms": partial(Muon, **RMS, weight_decay=0.5),
    "muon, bfloat16": Muon,
}


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_reference(case):
    # Newton-Schulz in bfloat16 is off by a percent of an update of 0.01.
    tolerance = 2e-2 if "bfloat16" in case else 1e-5
    assert_agrees_with_the_reference(case, CASES[case], tolerance)
