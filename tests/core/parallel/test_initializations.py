# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled Embed and WeSaR under fleet's layouts train as one process."""

import numpy as np
import pytest
from core.parallel import training
from core.parallel.training import (
    DENSE,
    LAYOUTS,
    MOE,
    assert_close,
    merge,
    on_ranks,
)
from helpers import long_but

# After QK-norm the scales of queries and keys have no gradient but rounding.
UNTIED = {**DENSE, "tie_word_embeddings": False, "qk_norm": False}
WESAR = {"options": {**UNTIED, "initialization": "wesar"}}
WESAR_MOE = {"options": {**MOE, "initialization": "wesar"}}
SCALED_EMBED = {"options": {**DENSE, "initialization": "scaled_embed"}}
CASES = {
    "tp2": [WESAR_MOE, SCALED_EMBED],
    "sp with tp2 x pp2": [WESAR, SCALED_EMBED],
    "ep2": [WESAR_MOE],
}


def assert_same(ranks, expected):
    """Losses and weights to 1e-5; gamma and clipped gradients of scales less.

    A scale's gradient is one sum over all that its matrix gives, whose terms
    nearly cancel here: its rounding is up to 1e-3 of what is left.
    """
    losses = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    weights = merge([rank["weights"] for rank in ranks])
    assert_close(weights, expected["weights"], "weights")
    gammas = expected["state"]["gamma"]
    assert all(rank["state"] == ranks[0]["state"] for rank in ranks)
    for key, gamma in ranks[0]["state"]["gamma"].items():
        rel = 5e-3 if key.endswith("alpha") else 1e-5
        assert gamma == pytest.approx(gammas[key], rel=rel), key
    for step, expected_clipped in expected["clipped"].items():
        clipped = merge([rank["clipped"][step] for rank in ranks])
        assert clipped.keys() == expected_clipped.keys()
        for key, gradient in expected_clipped.items():
            rel = 5e-3 if key.endswith("alpha") else 1e-5
            np.testing.assert_allclose(
                clipped[key],
                gradient,
                rtol=0,
                atol=rel * np.abs(gradient).max(),
                err_msg=f"{key} in step {step}",
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    long_but(("ep2",), CASES),
)
def test_run_is_that_of_one_process(case):
    results = on_ranks(LAYOUTS[case], CASES[case])
    for arguments, ranks in zip(CASES[case], results, strict=True):
        assert_same(ranks, training.train_alone(**arguments))
