# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What AdaGC would clip of a run's norms."""

import numpy as np
import pytest
from pages import load_tool

measure = load_tool("late_phase").measure


def clipped_share(variation):
    """Return the share at ``E[min(1.04 gamma, g)] = gamma``."""
    norm = np.exp(np.random.default_rng(1).normal(0, variation, 200_000))
    low, high = 0.3, 3.0
    for _ in range(60):
        gamma = (low + high) / 2
        grows = np.minimum(1.04 * gamma, norm).mean() > gamma
        low, high = (gamma, high) if grows else (low, gamma)
    return (norm > 1.04 * low).mean()


@pytest.mark.parametrize("variation", [0.02, 0.05, 0.2])
def test_steady_norms(variation):
    rng = np.random.default_rng(0)
    norm = np.exp(rng.normal(0, variation, (4000, 8)))
    found = measure(norm, norm)
    assert found["variation"] == pytest.approx(variation, rel=0.05)
    assert found["clipped"] == pytest.approx(clipped_share(variation), abs=0.03)
    assert found["growth"] == pytest.approx(1 / norm[:100].min(), rel=0.5)


def test_norms_that_grew():
    norm = np.concatenate([np.full((100, 3), 0.1), np.full((900, 3), 1.0)])
    found = measure(norm, norm / 2)
    assert found["growth"] == pytest.approx(20)
    assert found["clipped"] == 1
    assert found["median h"] < 0.2
