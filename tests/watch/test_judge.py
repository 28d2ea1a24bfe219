# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is abnormal, step by step."""

import math

import numpy as np
import pytest

from paddle_adagc.watch.judge import Judge


def noisy(length, level=2.0, noise=0.02, seed=0):
    random = np.random.default_rng(seed)
    return level * np.exp(noise * random.normal(size=length))


def events_of(losses, name="loss"):
    judge = Judge()
    return [
        event
        for step, loss in enumerate(losses, 1)
        for event in judge.add(step, {name: float(loss)})
    ]


def changed(length, changes):
    losses = noisy(length)
    for place, factor in changes:
        losses[place] *= factor
    return losses


DESCENT = 0.5 + 9.5 * np.exp(-np.arange(300) / 30)
LAST = slice(200, None)
FOUND = {
    "after 16 values": (changed(40, [(16, 3)]), [("spike", 17)]),
    "not before": (changed(40, [(14, 3)]), []),
    "two events": (
        changed(300, [(100, 2), (150, 2)]),
        [("spike", 101), ("spike", 151)],
    ),
    "twice what it was, for good": (
        changed(300, [(LAST, 2)]),
        [("spike", 201)],
    ),
    "in a steep descent": (
        np.where(np.arange(300) == 30, 3, 1) * DESCENT * noisy(300, 1.0),
        [("spike", 31)],
    ),
    "a descent alone": (DESCENT * noisy(300, 1.0), []),
    "below zero": (
        noisy(300) - 5 + 4 * (np.arange(300) == 200),
        [("spike", 201)],
    ),
    "a fall": (changed(300, [(LAST, 0.3)]), []),
    "constant": (np.full(200, 2.0), []),
}


@pytest.mark.parametrize("name", FOUND)
def test_an_event_is_found_in_its_first_step(name):
    losses, expected = FOUND[name]
    assert [(e.kind, e.step) for e in events_of(losses)] == expected


def test_a_small_lasting_rise_is_found_within_a_window():
    """Four deviations: no single loss is far."""
    losses = changed(400, [(LAST, math.exp(0.16))])
    events = events_of(
        noisy(400, noise=0.04)[:200].tolist() + losses[200:].tolist()
    )
    assert events[0].kind == "spike"
    assert abs(events[0].step - 201) <= 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 3, 150])
def test_a_loss_that_is_not_finite_ends_it_at_once(value, place):
    losses = noisy(200)
    losses[place:] = value
    assert [(e.kind, e.step) for e in events_of(losses)] == [("nan", place + 1)]
