# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paired excess, by hand."""

import math

import numpy as np
import pytest

from paddle_adagc.lab.faults import FaultConfig, FaultSchedule
from paddle_adagc.stability import paired_excess


def pair(num_steps=100, seed=0, **jumps):
    """Reference, and a copy with the given excess from the given steps on."""
    reference = 2 + np.random.default_rng(seed).standard_normal(num_steps)
    losses = reference.copy()
    for step, values in jumps.items():
        start = int(step.removeprefix("at"))
        values = np.atleast_1d(values)
        losses[start : start + len(values)] += values
    return losses, reference


def test_hand_worked():
    losses, reference = pair(at21=[1.0, 0.6, 0.3, 0.15], at60=0.3)
    result = paired_excess(losses, reference, [20], smoothing=2)
    assert result.faults == ((20, 20),)
    assert result.num_events == {0.2: 2, 0.5: 1}
    assert result.area == pytest.approx(2.35)
    assert result.worst == pytest.approx(1.0)
    assert result.worst_step == 21
    assert result.num_left_out == 0
    assert result.difference_before == 0
    # The mean of 0.3 and 0 at step 60 is the last one not below 0.1.
    assert result.recovery_steps == (40,)
    assert result.steps_to_recover == 40


def test_recovery_is_the_first_step_that_stays_below():
    losses, reference = pair(at21=[1.0, 0.6, 0.3, 0.15])
    for smoothing, expected in ((1, 4), (2, 3)):
        result = paired_excess(losses, reference, [20], smoothing=smoothing)
        assert result.steps_to_recover == expected
    high = paired_excess(
        losses, reference, [20], smoothing=1, recovered_below=0.5
    )
    assert high.steps_to_recover == 2


def test_no_damage():
    losses, reference = pair()
    result = paired_excess(losses, reference, [20, 21, 22])
    assert result.faults == ((20, 22),)
    assert result.steps_to_recover == 0
    assert result.num_events == {0.2: 0, 0.5: 0}
    assert (result.area, result.worst) == (0.0, 0.0)


def test_never_recovered():
    losses, reference = pair(at21=np.full(79, 0.7))
    result = paired_excess(losses, reference, [20])
    assert result.recovery_steps == (None,)
    assert result.steps_to_recover is None
    assert result.num_events == {0.2: 1, 0.5: 1}
    assert result.area == pytest.approx(79 * 0.7)


def test_a_better_run_has_recovered_and_a_negative_area():
    losses, reference = pair(at21=np.full(79, -0.7))
    result = paired_excess(losses, reference, [20])
    assert result.steps_to_recover == 0
    assert result.area == pytest.approx(-79 * 0.7)
    assert result.worst == 0.0
    assert result.num_events == {0.2: 0, 0.5: 0}


def test_every_burst_recovers_on_its_own():
    losses, reference = pair(at11=[1.0, 1.0], at41=np.full(9, 2.0), at71=3.0)
    result = paired_excess(losses, reference, [10, 40, 50, 70])
    assert result.recovery_steps == (2, None, 0, 1)
    assert result.steps_to_recover is None
    assert result.num_events[0.5] == 3


def test_fault_at_the_end_cannot_recover():
    losses, reference = pair()
    assert paired_excess(losses, reference, [99]).recovery_steps == (None,)


def test_short_tail_is_averaged_whole():
    losses, reference = pair(at98=[0.15, 0.01])
    result = paired_excess(losses, reference, [97], smoothing=10)
    assert result.recovery_steps == (0,)


def test_the_corrupted_batch_itself_is_left_out():
    losses, reference = pair(at30=[20.0, 20.0], at32=0.3)
    schedule = FaultSchedule(
        [
            FaultConfig(kind="random_tokens", steps=(30,), duration=2),
            FaultConfig(kind="gradient_nan", steps=(50,)),
        ],
        seed=0,
    )
    result = paired_excess(
        losses,
        reference,
        schedule.fault_steps(100),
        exclude_steps=schedule.corrupted_loss_steps(100),
    )
    assert result.faults == ((30, 31), (50, 50))
    assert result.worst == pytest.approx(0.3)
    assert result.worst_step == 32
    assert result.num_events == {0.2: 1, 0.5: 0}
    assert result.num_left_out == 2
    assert np.isnan(result.excess[30:32]).all()
    counted = paired_excess(losses, reference, [30, 31, 50])
    assert counted.worst == pytest.approx(20.0)


def test_left_out_steps_do_not_break_the_smoothing():
    losses, reference = pair(at21=[1.0, 9.0, 1.0, 9.0])
    result = paired_excess(
        losses, reference, [20], exclude_steps=[22, 24], smoothing=2
    )
    # Judged: 1 at 21 and 23, then 0 from 25 on.
    assert result.steps_to_recover == 4
    assert result.area == pytest.approx(2.0)


def test_diverged_run():
    losses, reference = pair()
    losses[30:] = math.nan
    result = paired_excess(losses, reference, [20])
    assert result.area == result.worst == math.inf
    assert result.worst_step == 30
    assert result.num_events == {0.2: 1, 0.5: 1}
    assert result.steps_to_recover is None


def test_transient_nan_recovers():
    losses, reference = pair()
    losses[[25, 26]] = math.nan, -math.inf
    result = paired_excess(losses, reference, [20])
    assert result.steps_to_recover == 6
    assert result.worst == math.inf


def test_diverged_reference_is_left_out():
    losses, reference = pair()
    reference[60:] = math.nan
    losses[61] = reference[61] = math.inf
    with np.errstate(invalid="raise"):  # as some users have it
        result = paired_excess(losses, reference, [20])
    assert result.num_left_out == 40
    assert result.area == 0
    nothing = paired_excess(losses, np.full(100, math.nan), [20])
    assert math.isnan(nothing.worst)
    assert nothing.worst_step is None
    assert nothing.recovery_steps == (None,)
    assert nothing.difference_before == math.inf


def test_runs_that_are_not_paired_show():
    losses, reference = pair(at5=-0.25)
    result = paired_excess(losses, reference, [20])
    assert result.difference_before == pytest.approx(0.25)
    assert result.worst == 0


def test_thresholds_and_event_gap():
    losses, reference = pair(at30=1.0, at35=3.0, at50=2.0)
    result = paired_excess(
        losses, reference, [20], thresholds=(0.5, 2.5), event_gap=4
    )
    assert result.num_events == {0.5: 3, 2.5: 1}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"reference": [1.0]}, ValueError, "losses has 3 steps, reference 1"),
        ({"losses": np.ones((3, 1))}, ValueError, "losses must be one-dim"),
        ({"fault_steps": []}, ValueError, "fault_steps is empty"),
        ({"fault_steps": [3]}, ValueError, "fault step 3 lies outside the 3"),
        ({"fault_steps": [-1]}, ValueError, "got -1"),
        ({"fault_steps": [0.5]}, TypeError, "0.5"),
        ({"smoothing": 0}, ValueError, "smoothing must be at least 1, got 0"),
        ({"recovered_below": 0}, ValueError, "recovered_below .* got 0"),
        ({"thresholds": [-0.2]}, ValueError, "threshold .* got -0.2"),
        ({"event_gap": 0}, ValueError, "event_gap .* got 0"),
    ],
)
def test_bad_arguments(arguments, error, message):
    good = {
        "losses": [1.0, 2.0, 3.0],
        "reference": [1.0, 2.0, 3.0],
        "fault_steps": [1],
    }
    with pytest.raises(error, match=message):
        paired_excess(**{**good, **arguments})


def test_neighbouring_steps_alone_are_one_burst():
    losses, reference = pair()
    result = paired_excess(losses, reference, [10, 11, 13])
    assert result.faults == ((10, 11), (13, 13))


def test_the_first_step_may_be_left_out():
    losses, reference = pair(at0=9.0)
    result = paired_excess(losses, reference, [0], exclude_steps=[0])
    assert (result.num_left_out, result.worst) == (1, 0.0)


def test_one_unknown_step_before_the_fault_is_an_infinite_difference():
    losses, reference = pair()
    reference[3] = np.nan
    result = paired_excess(losses, reference, [20])
    assert result.difference_before == math.inf
