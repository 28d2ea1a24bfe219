# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Events: what is one occurrence, and how many exceed a threshold."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paddle_adagc.stability.spike_score import count_events, group_events


def test_gap_joins_and_parts():
    assert group_events([1, 2, 12, 23], 10) == ((1, 12), (23, 23))
    assert group_events([1, 2, 12, 23], 1) == ((1, 2), (12, 12), (23, 23))
    assert group_events([]) == ()


def test_an_event_with_a_dip_is_one_at_every_threshold():
    values = np.array([0.0, 3.0, *[1.0] * 20, 3.0, 0.0])
    steps = np.arange(len(values))
    assert count_events(steps, values, [0.5, 2.0], 10) == {0.5: 1, 2.0: 1}
    assert count_events(steps, values, [2.0], 10) == {2.0: 2}


def test_values_below_for_long_enough_end_an_event():
    values = np.array([1.0, *[0.0] * 10, 1.0])
    steps = np.arange(len(values))
    assert count_events(steps, values, [0.5], 11) == {0.5: 1}
    assert count_events(steps, values, [0.5], 10) == {0.5: 2}


@given(
    st.lists(st.floats(-1, 4), max_size=60),
    st.lists(st.floats(0, 3), min_size=1, max_size=5),
    st.integers(1, 12),
)
def test_a_higher_threshold_never_has_more_events(values, thresholds, gap):
    series = np.array(values)
    counts = count_events(np.arange(len(series)), series, thresholds, gap)
    ordered = [counts[threshold] for threshold in sorted(thresholds)]
    assert ordered == sorted(ordered, reverse=True)


def test_what_is_at_a_threshold_is_not_above_it():
    steps, values = np.arange(60), np.zeros(60)
    values[[5, 6, 40]] = 0.3, 0.5, 0.2
    assert count_events(steps, values, [0.2, 0.5]) == {0.2: 1, 0.5: 0}


def test_a_value_at_the_threshold_joins_no_events():
    steps, values = np.arange(40), np.zeros(40)
    values[[0, 8, 16]] = 0.3, 0.2, 0.3
    assert count_events(steps, values, [0.2], event_gap=10) == {0.2: 2}


def test_each_event_has_a_peak_of_its_own():
    steps, values = np.arange(60), np.zeros(60)
    values[[5, 40]] = 0.3, 0.9
    assert count_events(steps, values, [0.2, 0.5]) == {0.2: 2, 0.5: 1}
