# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exact tests against hand-worked answers, definitions and SciPy."""

import itertools
import math
import re

import numpy as np
import pytest
from adagc_lab.reproduce.pairs import differences_of
from adagc_lab.reproduce.statistics import (
    Rate,
    clustered_rate_p,
    detectable,
    holm,
    mean_limits,
    pairs_to_decide,
    rate_p,
    rate_ratio,
    rate_seeds_to_decide,
    sign_flip_p,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.reproduce.conftest import cell
from scipy import stats

NONE, ONE = [Rate(0, 1000)] * 8, [Rate(1, 1000)] * 8
BURST, DENSE = [Rate(8, 1000), *NONE[1:]], [Rate(1, 100)] * 8
HIGHEST = 1 - 0.025 ** (1 / 7)  # share of which none in 7 is that rare
DIFFERENCES = np.array([-1.0, 0.0, -1.0, 0.0])
NO_EVENT, FOUR = Rate(0, 4000), Rate(4, 4000)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Sums of ±1 ±2 ±4: the seen one, 1 + 2 - 4 = -1, is the fourth lowest.
        (sign_flip_p([1.0, 2.0, -4.0]), (4 / 8, 5 / 8)),
        (sign_flip_p([1.0, 2.0, -4.0]).two_sided, 1),
        # 0.3 - 0.1 - 0.2 is not 0, though these sums are equal.
        (sign_flip_p([0.3, -0.1, -0.2]), (5 / 8, 5 / 8)),
        # Ranks 1, 2.5, 2.5 with signs +, -, -: only the all-negative is lower.
        (sign_flip_p([1.0, -math.inf, -math.inf]).less, 2 / 8),
        # All 7 events on one of two equal sides; none at all: no evidence.
        (rate_p(Rate(0, 100), Rate(7, 100)), (2**-7, 1)),
        (rate_p(Rate(0, 100), Rate(0, 100)), (1, 1)),
        # With a third of the steps on the first side: (2 / 3)^7.
        (rate_p(Rate(0, 50), Rate(7, 100)).less, (2 / 3) ** 7),
        # 1 of 4 events on a third of the steps.
        (rate_ratio(Rate(1, 50), Rate(3, 100))[0], 2 / 3),
        (
            rate_ratio(Rate(0, 50), Rate(7, 100)),
            (0, 0, 2 * HIGHEST / (1 - HIGHEST)),
        ),
        (rate_ratio(Rate(7, 50), Rate(0, 100))[0], math.inf),
        (rate_ratio(Rate(0, 50), Rate(0, 100)), (math.nan, 0, math.inf)),
        # Events that come in clusters decide less; rates count, not events.
        (clustered_rate_p(NONE, ONE), (2**-8, 1)),
        (clustered_rate_p(NONE, BURST).less, 0.5),
        (clustered_rate_p(BURST, NONE).greater, 0.5),
        (clustered_rate_p(ONE, DENSE).less, 2**-8),
        # Student's t of 2 degrees of freedom, 4.303, times 1 / sqrt(3).
        (mean_limits(np.array([1.0, 2.0, 3.0])), (2, 2 - 2.4841, 2 + 2.4841)),
        (mean_limits(np.array([1.5])), (1.5, 1.5, 1.5)),
        (holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06]),
        (holm([]), []),
        (holm([0.5, 0.6]), [1.0, 1.0]),
        # A mean of 0.5 at a deviation of 0.577: (2.802 * 0.577 / 0.5)^2 = 10.5.
        (pairs_to_decide(DIFFERENCES, None), 11),
        (pairs_to_decide(np.array([-1.0, 1.0]), None), None),
        (pairs_to_decide(np.array([-1.0, 1.0]), 100.0), 8),
        (detectable(DIFFERENCES), 2.8016 * 0.57735 / 2),
        (detectable(np.array([1.0])), None),
        # Twice the 3 events against none give 2^-6; 8 seeds are the least.
        (rate_seeds_to_decide(Rate(0, 3000), Rate(3, 3000), 3, None), 8),
        # Without events nothing is within a factor of 2; 15 each of 30 are, as
        # the binomial of 2/3 gives them a p of 0.043.
        (rate_seeds_to_decide(NO_EVENT, NO_EVENT, 4, 2.0), None),
        (rate_seeds_to_decide(FOUR, FOUR, 4, 2.0), 15),
        (rate_seeds_to_decide(NO_EVENT, NO_EVENT, 4, None), None),
        # 5 events against none: 2^-5; 6: 2^-6 is the first p below 0.025.
        (rate_seeds_to_decide(Rate(0, 8000), Rate(5, 8000), 8, None), 9),
        # 12 each of 24 against a ratio of 2: the binomial of 2/3 gives 0.068.
        (rate_p(Rate(12, 100), Rate(12, 100), 2.0).less, 0.0676588),
        (rate_p(Rate(0, 100), Rate(7, 100), 1.0), (2**-7, 1)),
    ],
)
def test_hand_worked_answers(found, expected):
    if expected is not None:
        expected = pytest.approx(expected, rel=1e-4, nan_ok=True)
    assert found == expected


@settings(deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_equals_the_definition(values):
    series = np.array(values, float)
    signs = np.array([*itertools.product((-1, 1), repeat=len(values))])
    sums = signs @ np.abs(series)
    less, greater = (sums <= series.sum()).mean(), (sums >= series.sum()).mean()
    p = sign_flip_p(series)
    assert p == (less, greater)
    assert p.two_sided == min(1.0, 2 * min(less, greater))


def test_a_run_that_diverged_is_infinitely_high():
    nan, inf = math.nan, math.inf
    values = ((1.0, nan), (2.0, 1.5), (nan, inf), (-inf, 40.0), (30.0, -inf))
    pairs = [
        (cell("a", seed=i, x=a), cell("b", seed=i, x=b))
        for i, (a, b) in enumerate(values)
    ]
    expected = [-inf, 0.5, 0.0, -inf, inf]
    assert differences_of(pairs, "x").tolist() == expected
    assert differences_of(pairs[1:2], "x", 2.0).tolist() == [-1.0]


@pytest.mark.parametrize(
    ("differences", "message"),
    [([], "1 to 48"), ([1.0] * 49, "1 to 48"), ([1.0, math.nan], "NaN")],
)
def test_bad_differences_are_named(differences, message):
    with pytest.raises(ValueError, match=message):
        sign_flip_p(differences)


def test_limits_of_a_rate_are_exact():
    assert Rate(0, 10_000).text == "0.00 (0.00-0.37)"
    four = re.findall(r"[\d.]+", Rate(4, 1).text)
    rate, low, high = (float(number) / 1000 for number in four)
    assert rate == 4
    assert stats.poisson.sf(3, low) == pytest.approx(0.025, rel=1e-4)
    assert stats.poisson.cdf(4, high) == pytest.approx(0.025, rel=1e-4)
    assert Rate(0, 10_000).p_below(0.3) == pytest.approx(math.exp(-3))
