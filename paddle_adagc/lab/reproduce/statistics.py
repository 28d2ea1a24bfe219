# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""An exact paired test: what a difference over a few seeds is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from paddle_adagc.checks import check_choice

Alternative = Literal["less", "greater", "two-sided"]
MAX_PAIRS = 20
"""2**20 patterns of signs still take less than a second."""

_TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class PairedTest:
    """Result of :func:`sign_flip_test`."""

    p: float
    """Share of the sign patterns that are at least as extreme."""

    smallest_p: float
    """The least p that so many pairs can give; pairs that do not differ can
    give nothing."""

    num_pairs: int


def paired_differences(
    values: Sequence[float], others: Sequence[float]
) -> np.ndarray:
    """``values - others``, ``[num_pairs]`` float64, pair by pair.

    A NaN, that is the loss of a run that diverged, counts as infinitely high;
    two infinite ones do not differ.

    Raises:
        ValueError: The lengths differ.
    """
    if len(values) != len(others):
        raise ValueError(
            f"{len(values)} values and {len(others)} others do not pair up"
        )
    first, second = (
        np.where(np.isnan(series), np.inf, series)
        for series in (np.array(values, float), np.array(others, float))
    )
    with np.errstate(invalid="ignore"):
        return np.where(first == second, 0.0, first - second)


def sign_flip_test(
    differences: Sequence[float] | np.ndarray,
    alternative: Alternative = "two-sided",
) -> PairedTest:
    """Exact permutation test of paired differences (Fisher 1935).

    If the two methods were alike, every difference could as well have the
    other sign: p is the share of all ``2**num_pairs`` patterns of signs whose
    mean is at least as extreme as the one seen. Nothing is assumed about the
    distribution but its symmetry. With infinite differences their ranks take
    the place of all magnitudes (Wilcoxon's signed-rank test, exact).

    Args:
        differences: ``[num_pairs]``, none of them NaN.
        alternative: ``"less"``: the mean is below 0; ``"greater"``: above;
            ``"two-sided"``: either.

    Raises:
        ValueError: No pairs, more than :data:`MAX_PAIRS`, or a NaN.
    """
    check_choice("alternative", alternative, get_args(Alternative))
    series = np.asarray(differences, dtype=np.float64)
    count = series.size
    if not 1 <= count <= MAX_PAIRS or series.ndim != 1:
        raise ValueError(
            f"differences must be 1 to {MAX_PAIRS} numbers, got shape "
            f"{series.shape}"
        )
    if np.isnan(series).any():
        raise ValueError(f"differences holds a NaN: {series.tolist()}")
    sizes = np.abs(series)
    if np.isinf(sizes).any():
        sizes = _ranks(sizes)
    patterns = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    sums = (2 * patterns - 1) @ sizes
    seen = float(np.sign(series) @ sizes)
    slack = _TOLERANCE * max(float(sizes.sum()), 1e-300)
    if alternative == "less":
        extreme = sums <= seen + slack
    elif alternative == "greater":
        extreme = sums >= seen - slack
    else:
        extreme = np.abs(sums) >= abs(seen) - slack
    sides = 2 if alternative == "two-sided" else 1
    num_differing = int(np.count_nonzero(sizes))
    return PairedTest(
        p=float(extreme.mean()),
        smallest_p=min(1.0, sides / 2**num_differing),
        num_pairs=count,
    )


def _ranks(sizes: np.ndarray) -> np.ndarray:
    """Ranks from 1, zeros left at 0, ties sharing their mean rank."""
    ranks = np.zeros_like(sizes)
    values, inverse, counts = np.unique(
        sizes[sizes > 0], return_inverse=True, return_counts=True
    )
    if values.size:
        ends = np.cumsum(counts)
        ranks[sizes > 0] = (ends - (counts - 1) / 2)[inverse]
    return ranks
