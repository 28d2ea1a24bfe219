# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which steps faults hit, refused settings, and the generators of faults."""

import pytest

from paddle_adagc.lab.faults import FaultConfig, FaultSchedule

NAN = {"kind": "gradient_nan"}
FLIP = {"kind": "gradient_bit_flip"}


def hit_steps(config, num_steps=40):
    return [s for s in range(num_steps) if config.burst_start(s) is not None]


def test_bursts_are_listed_or_periodic():
    listed = FaultConfig(kind="gradient_nan", steps=(9, 3), duration=2)
    assert hit_steps(listed) == [3, 4, 9, 10]
    assert [listed.burst_start(s) for s in (3, 4, 9, 10)] == [3, 3, 9, 9]
    config = FaultConfig(kind="random_tokens", start=5, every=10, duration=3)
    assert hit_steps(config, 20) == [5, 6, 7, 15, 16, 17]
    assert config.burst_start(17) == 15
    assert hit_steps(FaultConfig(kind="gradient_inf", start=7)) == [7]
    forever = FaultConfig(kind="gradient_inf", start=0, every=1)
    assert forever.burst_start(10**9) == 10**9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "gradient_scal"}, "did you mean 'gradient_scale'"),
        (NAN | {"step": [1]}, "'step'.*mean 'steps'"),
        (NAN, "either steps or start"),
        (NAN | {"steps": [1], "start": 1}, "either steps"),
        (NAN | {"steps": []}, "steps must not be empty"),
        (NAN | {"steps": "12"}, "steps must be a list"),
        (NAN | {"steps": [1, 3], "duration": 3}, "3 overlap at steps 1 and 3"),
        (NAN | {"steps": [1], "every": 5}, "every=5"),
        (NAN | {"start": 5, "every": 2, "duration": 3}, "3 overlap at every=2"),
        ({"kind": "gradient_scale", "start": 5}, "needs magnitude"),
        (NAN | {"start": 5, "magnitude": 2.0}, "no magnitude, got magn.*=2.0"),
        ({"kind": "random_tokens", "start": 5, "tensor": "*"}, "no tensor"),
        (FLIP | {"start": 5, "exponent_bit": 8}, "at most 7, got 8"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        FaultConfig(**values)


CONFIGS = [
    FaultConfig(kind="random_tokens", start=10, every=20, duration=2),
    FaultConfig(kind="gradient_nan", steps=(11, 35)),
    FaultConfig(kind="shuffled_labels", steps=(40,)),
]


def test_faults_of_a_step():
    schedule = FaultSchedule(CONFIGS, seed=7)
    assert schedule.at(0) == []
    assert [(f.kind, f.target, f.burst, f.step) for f in schedule.at(11)] == [
        ("random_tokens", "batch", 10, 11),
        ("gradient_nan", "gradient", 11, 11),
    ]


def test_what_the_generators_depend_on():
    schedule = FaultSchedule(CONFIGS, seed=7)
    first, second = schedule.at(10)[0], schedule.at(11)[0]
    other_seed = FaultSchedule(CONFIGS, seed=8).at(10)[0]
    assert first.burst_rng().random() == second.burst_rng().random()
    bursts = [first, schedule.at(30)[0], schedule.at(11)[1], other_seed]
    assert len({fault.burst_rng().random() for fault in bursts}) == 4
    draws = {fault.step_rng().random() for fault in [*bursts, second]}
    draws |= {first.step_rng(part).random() for part in (1, 2)}
    draws |= {first.burst_rng().random()}
    assert len(draws) == 8


def test_draws_are_those_of_recorded_runs():
    config = FaultConfig(kind="random_tokens", steps=(5,), duration=2)
    (fault,) = FaultSchedule([config], seed=3).at(6)
    drawn = [
        rng.integers(1000, size=3).tolist()
        for rng in (fault.burst_rng(), fault.step_rng(), fault.step_rng(1))
    ]
    assert drawn == [[887, 898, 297], [1, 53, 221], [358, 633, 318]]
