# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The schedule is a function of seed and settings."""

import json

import numpy as np

from paddle_adagc.lab.faults import FaultConfig, FaultSchedule

CONFIGS = [
    FaultConfig(kind="random_tokens", start=10, every=20, duration=2),
    FaultConfig(kind="gradient_nan", steps=(11, 35)),
    FaultConfig(kind="activation_nan", steps=(40,)),
]


def test_faults_of_a_step():
    schedule = FaultSchedule(CONFIGS, seed=7)
    assert schedule.at(0) == []
    assert [(f.kind, f.target, f.burst, f.step) for f in schedule.at(11)] == [
        ("random_tokens", "batch", 10, 11),
        ("gradient_nan", "gradient", 11, 11),
    ]


def test_steps_to_mark_and_to_leave_out():
    schedule = FaultSchedule(CONFIGS, seed=7)
    assert schedule.fault_steps(45) == [10, 11, 30, 31, 35, 40]
    assert schedule.corrupted_loss_steps(45) == [10, 11, 30, 31, 40]
    assert schedule.fault_steps(11) == [10]
    assert FaultSchedule([], seed=0).fault_steps(100) == []


def test_generators_have_no_memory():
    fault = FaultSchedule(CONFIGS, seed=7).at(10)[0]
    fault.step_rng().random(100)
    again = FaultSchedule(CONFIGS, seed=7).at(10)[0]
    assert again == fault
    for name in ("step_rng", "burst_rng"):
        draws = [getattr(f, name)().random(4) for f in (fault, again)]
        np.testing.assert_array_equal(*draws)


def test_what_the_generators_depend_on():
    schedule = FaultSchedule(CONFIGS, seed=7)
    first, second = schedule.at(10)[0], schedule.at(11)[0]
    other_burst = schedule.at(30)[0]
    other_index = schedule.at(11)[1]
    other_seed = FaultSchedule(CONFIGS, seed=8).at(10)[0]
    assert first.burst_rng().random() == second.burst_rng().random()
    bursts = [first, other_burst, other_index, other_seed]
    assert len({fault.burst_rng().random() for fault in bursts}) == 4
    steps = [*bursts, second]
    draws = {fault.step_rng().random() for fault in steps}
    draws |= {first.step_rng(part).random() for part in (1, 2)}
    draws |= {first.burst_rng().random()}
    assert len(draws) == 8


def test_record_is_json():
    fault = FaultSchedule(CONFIGS, seed=7).at(35)[0]
    record = {"kind": "gradient_nan", "tensors": ["a.weight"]}
    assert json.loads(json.dumps(fault.record(["a.weight"]))) == record
    assert fault.record()["tensors"] == []


def test_draws_are_those_of_recorded_runs():
    config = FaultConfig(kind="random_tokens", steps=(5,), duration=2)
    (fault,) = FaultSchedule([config], seed=3).at(6)
    drawn = [
        rng.integers(1000, size=3).tolist()
        for rng in (fault.burst_rng(), fault.step_rng(), fault.step_rng(1))
    ]
    assert drawn == [[887, 898, 297], [1, 53, 221], [358, 633, 318]]
