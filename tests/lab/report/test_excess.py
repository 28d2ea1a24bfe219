# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paired excess, by hand."""

import math

import numpy as np
import pytest
from adagc_lab.report.excess import count_events, paired_excess

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
        {"left_out": [30, 31]},
        worst=0.3,
        num_events={0.2: 1, 0.5: 0},
    )
    assert np.isnan(result.excess[30:32]).all()
    check(excess, steps, worst=20.0)
    check({0: [9.0]}, [0], {"left_out": [0]}, worst=0.0)
    # Judged: 1 at 21 and 23, then 0 from 25 on.
    alternate = {"left_out": [22, 24]}
    excess = {21: [1.0, 9.0, 1.0, 9.0]}
    check(excess, [20], alternate, steps_to_recover=4, area=2.0)


def test_events_close_to_each_other_are_one():
    excess = {30: [0.3], 40: [1.0], 51: [0.4]}
    check(excess, [20], num_events={0.2: 2, 0.5: 1})


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


def test_runs_of_two_lengths():
    losses, reference = pair({30: [0.3]})
    assert paired_excess(losses, None, [20]) is None
    assert paired_excess(losses[:20], reference, [20]) is None
    short = paired_excess(losses[:50], reference, [20])
    assert short.area == pytest.approx(0.3)
    stopped = paired_excess(losses[:50], reference, [20], (), True)
    assert stopped.area == math.inf
    assert len(stopped.excess) == 100


@pytest.mark.parametrize(
    ("peaks", "thresholds", "expected"),
    [
        # What is at a threshold is not above it.
        ({5: 0.3, 6: 0.5, 40: 0.2}, [0.2, 0.5], {0.2: 1, 0.5: 0}),
        # A value at the threshold joins no events.
        ({0: 0.3, 8: 0.2, 16: 0.3}, [0.2], {0.2: 2}),
        # Each event has a peak of its own.
        ({5: 0.3, 40: 0.9}, [0.2, 0.5], {0.2: 2, 0.5: 1}),
        # Values below for long enough end an event.
        ({0: 1.0, 10: 1.0}, [0.5], {0.5: 1}),
        ({0: 1.0, 11: 1.0}, [0.5], {0.5: 2}),
        # An event with a dip is one at every threshold.
        ({0: 3.0, 8: 1.0, 16: 3.0}, [0.5, 2.0], {0.5: 1, 2.0: 1}),
        ({0: 3.0, 8: 1.0, 16: 3.0}, [2.0], {2.0: 2}),
    ],
)
def test_events_above_thresholds(peaks, thresholds, expected):
    steps, values = np.arange(60), np.zeros(60)
    values[[*peaks]] = [*peaks.values()]
    assert count_events(steps, values, thresholds) == expected
