# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paired excess, by hand."""

import math

import numpy as np
import pytest
from adagc_lab.report.excess import paired_excess

NONE, BOTH = {0.2: 0, 0.5: 0}, {0.2: 1, 0.5: 1}
FADING = {21: [1.0, 0.6, 0.3, 0.15]}


def pair(excess):
    """A copy with the given excess from the given steps on, and its model."""
    reference = 2 + np.random.default_rng(0).standard_normal(100)
    losses = reference.copy()
    for start, values in excess.items():
        losses[start : start + len(values)] += values
    return losses, reference


def check(excess, fault_steps, settings=None, **expected):
    """Hold attributes of a pair's excess against those worked by hand."""
    result = paired_excess(*pair(excess), fault_steps, **(settings or {}))
    for name, value in expected.items():
        if isinstance(value, float):
            value = pytest.approx(value)
        assert getattr(result, name) == value, name
    return result


def test_hand_worked():
    # Means of 10 steps are 0.205 from step 21, 0.105 from 22, 0.045 from 23.
    check(FADING, [20], steps_to_recover=2)
    # That from 60 is the last one above 0.1.
    check(
        FADING | {60: [1.2]},
        [20],
        num_events={0.2: 2, 0.5: 2},
        area=3.25,
        worst=1.2,
        steps_to_recover=40,
    )
    check({}, [99], steps_to_recover=None)
    # A short tail is averaged whole: 0.08 and 0.105.
    check({98: [0.15, 0.01]}, [97], steps_to_recover=0)
    check({98: [0.2, 0.01]}, [97], steps_to_recover=None)


def test_damage_of_every_kind():
    nothing = {"num_events": NONE, "steps_to_recover": 0, "worst": 0.0}
    check({}, [20, 21, 22], area=0.0, **nothing)
    check({21: [-0.7] * 79}, [20], area=-79 * 0.7, **nothing)  # a better run
    lasting = {"num_events": BOTH, "steps_to_recover": None}
    check({21: [0.7] * 79}, [20], area=79 * 0.7, **lasting)
    endless = {"area": math.inf, "worst": math.inf}
    check({30: [math.nan] * 70}, [20], **lasting, **endless)
    passing = {25: [math.nan, -math.inf]}
    check(passing, [20], steps_to_recover=6, worst=math.inf)


def test_every_burst_recovers_on_its_own():
    lasting = {11: [1.0, 1.0], 41: [2.0] * 9, 71: [3.0]}
    check(lasting, [10, 70], steps_to_recover=39)
    check(
        lasting,
        [10, 40, 50, 70],
        steps_to_recover=None,
        num_events={0.2: 3, 0.5: 3},
    )
    check({11: [1.0, 1.0], 71: [3.0]}, [10, 70], steps_to_recover=2)
    check({}, [10, 11, 13], steps_to_recover=0)


def test_steps_left_out():
    excess, steps = {30: [20.0, 20.0, 0.3]}, [30, 31, 50]
    result = check(
        excess,
        steps,
        {"exclude_steps": [30, 31]},
        worst=0.3,
        num_events={0.2: 1, 0.5: 0},
    )
    assert np.isnan(result.excess[30:32]).all()
    check(excess, steps, worst=20.0)
    check({0: [9.0]}, [0], {"exclude_steps": [0]}, worst=0.0)
    # Judged: 1 at 21 and 23, then 0 from 25 on.
    alternate = {"exclude_steps": [22, 24]}
    excess = {21: [1.0, 9.0, 1.0, 9.0]}
    check(excess, [20], alternate, steps_to_recover=4, area=2.0)


def test_thresholds_and_event_gap():
    settings = {"thresholds": (0.5, 2.5)}
    excess = {30: [1.0], 40: [3.0], 51: [2.0]}
    check(excess, [20], settings, num_events={0.5: 2, 2.5: 1})


def test_diverged_reference_is_left_out():
    losses, reference = pair({})
    reference[60:] = math.nan
    losses[61] = reference[61] = math.inf
    with np.errstate(invalid="raise"):  # as some users have it
        result = paired_excess(losses, reference, [20])
    assert np.isnan(result.excess[60:]).all()
    assert result.area == 0
    nothing = paired_excess(losses, np.full(100, math.nan), [20])
    assert math.isnan(nothing.worst)
    assert nothing.steps_to_recover is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"reference": [1.0]}, ValueError, "losses has 3 steps, reference 1"),
        ({"losses": np.ones((3, 1))}, ValueError, "losses must be one-dim"),
        ({"fault_steps": []}, ValueError, "fault_steps is empty"),
        ({"fault_steps": [3]}, ValueError, "fault step 3 lies outside the 3"),
        ({"fault_steps": [-1]}, ValueError, "got -1"),
        ({"fault_steps": [0.5]}, TypeError, "0.5"),
        ({"thresholds": [-0.2]}, ValueError, "threshold .* got -0.2"),
    ],
)
def test_bad_arguments(arguments, error, message):
    series = [1.0, 2.0, 3.0]
    good = {"losses": series, "reference": series, "fault_steps": [1]}
    with pytest.raises(error, match=message):
        paired_excess(**{**good, **arguments})
