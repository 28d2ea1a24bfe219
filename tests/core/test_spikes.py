# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spike score against hand-worked answers and a literal reference."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_adagc import spikes
from paddle_adagc.spikes import spike_score


def literal_spikes(losses, window, sigma):
    """The definition, in rational numbers, one full pass per value."""
    past, spikes = [], []
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            spikes.append(step)
            continue
        if len(past) >= window:
            recent = past[-window:]
            mean = sum(recent) / window
            variance = sum((x - mean) ** 2 for x in recent) / (window - 1)
            distance = Fraction(loss) - mean
            if distance and distance**2 >= Fraction(sigma) ** 2 * variance:
                spikes.append(step)
        past.append(Fraction(loss))
    return spikes


def test_hand_worked():
    # Window 1, 3, 2: mean 2, deviation 1 (sample).
    losses = [1.0, 3.0, 2.0, 4.0]
    score = spike_score(losses, 3, sigma=2.0)
    assert (score.indices.tolist(), score.percent) == ([3], 25.0)
    assert spike_score(losses, 3, sigma=2.001).num_spikes == 0
    assert spike_score([1.0, 3.0, 2.0, 2.0], 3, sigma=1e-9).num_spikes == 0
    empty = spike_score([])
    assert (empty.num_values, empty.percent) == (0, 0.0)


@pytest.mark.parametrize("value", [0.1, -3.3, 1e30])
def test_only_a_change_of_a_constant_series_is_a_spike(value):
    losses = np.full(60, value)
    assert spike_score(losses, window=7, sigma=0.01).num_spikes == 0
    losses[20] *= 1.000001
    assert spike_score(losses, window=10).indices.tolist() == [20]


@settings(max_examples=150, deadline=None)
@given(
    losses=st.lists(
        st.one_of(
            st.integers(-3, 3).map(float),
            st.integers(-4096, 4096).map(lambda x: x / 64),
            st.sampled_from([math.nan, math.inf, -math.inf]),
        ),
        max_size=40,
    ),
    window=st.integers(2, 6),
    sigma=st.sampled_from([0.3141, 0.7071, 1.1447, 3.7183]),  # no ties
    skip=st.sampled_from([0, 1, 7, 60]),
    offset=st.sampled_from([0.0, 1e9]),
)
def test_equals_the_literal_definition(losses, window, sigma, skip, offset):
    losses = [offset + loss for loss in losses]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spikes, "_CHUNK_ELEMENTS", 7 * window)
        score = spike_score(losses, window, sigma, skip=skip)
    rest = losses[skip:]
    expected = [skip + i for i in literal_spikes(rest, window, sigma)]
    assert score.indices.tolist() == expected
    num_unjudged = min(sum(map(math.isfinite, rest)), window)
    assert score.num_unjudged == num_unjudged + min(len(losses), skip)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window": 1}, ValueError, "window must be at least 2, got 1"),
        ({"sigma": 0}, ValueError, "sigma must be positive, got 0"),
        ({"skip": -1}, ValueError, "skip must be at least 0, got -1"),
        ({"losses": [[1.0]]}, ValueError, r"one-dimensional, .* \(1, 1\)"),
        ({"losses": ["1.0"]}, TypeError, "real numbers, got .*'1.0'"),
        ({"losses": [True]}, TypeError, "bool"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        spike_score(**{"losses": [1.0, 2.0], **arguments})


def test_the_defaults_are_the_paper_s():
    losses = np.r_[np.arange(1000.0) % 2, 6.0]
    assert spike_score(losses).num_spikes == 1
    assert spike_score(losses[1:]).num_unjudged == 1000
    assert spike_score(np.r_[losses[:1000], 5.4]).num_spikes == 0
