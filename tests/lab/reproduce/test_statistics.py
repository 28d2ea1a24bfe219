# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exact tests against hand-worked answers, definitions and SciPy."""

import itertools
import math
import re

import numpy as np
import pytest
from adagc_lab.reproduce.comparisons import differences_of
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


def test_hand_worked_pattern():
    # Sums of ±1 ±2 ±4: the seen one, 1 + 2 - 4 = -1, is the fourth lowest.
    assert sign_flip_p([1.0, 2.0, -4.0]) == (4 / 8, 5 / 8)
    assert sign_flip_p([1.0, 2.0, -4.0]).two_sided == 1.0
    assert 0.3 - 0.1 - 0.2 != 0  # though these sums are equal
    assert sign_flip_p([0.3, -0.1, -0.2]) == (5 / 8, 5 / 8)


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


def test_infinite_differences_count_by_rank():
    # Ranks 1, 2.5, 2.5 with signs +, -, -: only the all-negative is lower.
    assert sign_flip_p([1.0, -math.inf, -math.inf]).less == 2 / 8


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
    [([], "1 to 40"), ([1.0] * 41, "1 to 40"), ([1.0, math.nan], "NaN")],
)
def test_bad_differences_are_named(differences, message):
    with pytest.raises(ValueError, match=message):
        sign_flip_p(differences)


def test_rates_are_compared_given_all_events():
    # All 7 events on one of two equal sides: 2^-7; none at all: no evidence.
    assert rate_p(Rate(0, 100), Rate(7, 100)) == pytest.approx((2**-7, 1))
    assert rate_p(Rate(0, 100), Rate(0, 100)) == (1, 1)
    # With a third of the steps on the first side: (2 / 3)^7.
    third = rate_p(Rate(0, 50), Rate(7, 100))
    assert third.less == pytest.approx((2 / 3) ** 7)


def test_a_ratio_of_rates_and_its_limits():
    # 1 of 4 events on a third of the steps.
    assert rate_ratio(Rate(1, 50), Rate(3, 100))[0] == pytest.approx(2 / 3)
    highest = 1 - 0.025 ** (1 / 7)  # share of which none in 7 is that rare
    found = rate_ratio(Rate(0, 50), Rate(7, 100))
    assert found == pytest.approx((0, 0, 2 * highest / (1 - highest)))
    assert rate_ratio(Rate(7, 50), Rate(0, 100))[0] == math.inf
    none = rate_ratio(Rate(0, 50), Rate(0, 100))
    assert none == pytest.approx((math.nan, 0, math.inf), nan_ok=True)


def test_limits_of_a_rate_are_exact():
    assert Rate(0, 10_000).text == "0.00 (0.00-0.37)"
    four = re.findall(r"[\d.]+", Rate(4, 1).text)
    rate, low, high = (float(number) / 1000 for number in four)
    assert rate == 4
    assert stats.poisson.sf(3, low) == pytest.approx(0.025, rel=1e-4)
    assert stats.poisson.cdf(4, high) == pytest.approx(0.025, rel=1e-4)
    assert Rate(0, 10_000).p_below(0.3) == pytest.approx(math.exp(-3))


def test_events_that_come_in_clusters_decide_less():
    none, one = [Rate(0, 1000)] * 8, [Rate(1, 1000)] * 8
    assert clustered_rate_p(none, one) == pytest.approx((2**-8, 1))
    burst = [Rate(8, 1000), *none[1:]]
    assert clustered_rate_p(none, burst).less == 0.5
    assert clustered_rate_p(burst, none).greater == 0.5
    dense = [Rate(1, 100)] * 8  # as many events, at a higher rate
    assert clustered_rate_p(one, dense).less == pytest.approx(2**-8)


def test_limits_of_a_mean():
    # Student's t of 2 degrees of freedom, 4.303, times 1 / sqrt(3).
    limits = mean_limits(np.array([1.0, 2.0, 3.0]))
    assert limits == pytest.approx((2, 2 - 2.484, 2 + 2.484), abs=1e-3)
    assert mean_limits(np.array([1.5])) == (1.5, 1.5, 1.5)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.5, 0.6]) == [1.0, 1.0]


def test_pairs_to_decide_and_what_they_see():
    differences = np.array([-1.0, 0.0, -1.0, 0.0])
    # A mean of 0.5 at a deviation of 0.577: (2.486 * 0.577 / 0.5)^2 = 8.2.
    assert pairs_to_decide(differences, None) == 9
    assert pairs_to_decide(np.array([-1.0, 1.0]), None) is None
    assert pairs_to_decide(np.array([-1.0, 1.0]), 100.0) == 8
    assert detectable(differences) == pytest.approx(2.486 * 0.5774 / 2, 1e-3)
    assert detectable(np.array([1.0])) is None


def test_seeds_to_decide_rates():
    # Twice the 3 events against none give 2^-6; 8 seeds are the least anyway.
    assert rate_seeds_to_decide(Rate(0, 3000), Rate(3, 3000), 3, None) == 8
    # Without events nothing is within a factor of 2; 15 each of 30 are, as the
    # binomial of 2/3 gives them a p of 0.043.
    none, four = Rate(0, 4000), Rate(4, 4000)
    assert rate_seeds_to_decide(none, none, 4, 2.0) is None
    assert rate_seeds_to_decide(four, four, 4, 2.0) == 15
    assert rate_seeds_to_decide(none, none, 4, None) is None
