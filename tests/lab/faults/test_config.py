# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which steps a fault hits, and which settings are refused."""

import pytest

from paddle_adagc.lab.faults import FaultConfig

NAN = {"kind": "gradient_nan"}
FLIP = {"kind": "gradient_bit_flip"}


def hit_steps(config, num_steps=40):
    return [s for s in range(num_steps) if config.burst_start(s) is not None]


def test_listed_steps():
    config = FaultConfig(kind="gradient_nan", steps=(9, 3), duration=2)
    assert hit_steps(config) == [3, 4, 9, 10]
    assert [config.burst_start(s) for s in (3, 4, 9, 10)] == [3, 3, 9, 9]


def test_periodic_steps():
    config = FaultConfig(kind="random_tokens", start=5, every=10, duration=3)
    assert hit_steps(config, 20) == [5, 6, 7, 15, 16, 17]
    assert config.burst_start(17) == 15


def test_start_alone_is_one_burst():
    assert hit_steps(FaultConfig(kind="gradient_inf", start=7)) == [7]
    forever = FaultConfig(kind="gradient_inf", start=0, every=1)
    assert hit_steps(forever) == list(range(40))
    assert forever.burst_start(10**9) == 10**9


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("random_tokens", "batch"),
        ("repeated_batch", "batch"),
        ("repeated_token", "batch"),
        ("shuffled_labels", "batch"),
        ("constant_labels", "batch"),
        ("gradient_bit_flip", "gradient"),
        ("activation_nan", "activation"),
    ],
)
def test_target(kind, target):
    assert FaultConfig(kind=kind, start=0).target == target


def test_values_are_converted():
    config = FaultConfig(kind="gradient_scale", steps=[4], magnitude=1000)
    assert config == FaultConfig(
        kind="gradient_scale", steps=(4,), magnitude=1000.0
    )
    assert isinstance(config.magnitude, float)
    assert hash(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "gradient_scal"}, "did you mean 'gradient_scale'"),
        ({}, "kind is missing"),
        ({"kind": "gradient_nan", "step": [1]}, "'step'.*mean 'steps'"),
        ({"kind": "gradient_nan"}, "either steps or start"),
        ({"kind": "gradient_nan", "steps": [1], "start": 1}, "either steps"),
        ({"kind": "gradient_nan", "steps": []}, "steps must not be empty"),
        ({"kind": "gradient_nan", "steps": "12"}, "steps must be a list"),
        ({"kind": "gradient_nan", "steps": [1, 1]}, "overlap at steps 1"),
        (NAN | {"steps": [1, 3], "duration": 3}, "3 overlap at steps 1 and 3"),
        ({"kind": "gradient_nan", "steps": [1], "every": 5}, "every=5"),
        (NAN | {"start": 5, "every": 2, "duration": 3}, "3 overlap at every=2"),
        ({"kind": "gradient_scale", "start": 5}, "needs magnitude"),
        (NAN | {"start": 5, "magnitude": 2.0}, "no magnitude, got magn.*=2.0"),
        ({"kind": "random_tokens", "start": 5, "tensor": "*"}, "no tensor"),
        ({"kind": "gradient_nan", "start": 5, "tensor": ""}, "got ''"),
        ({"kind": "token_noise", "start": 5}, "needs fraction"),
        ({"kind": "token_noise", "start": 5, "fraction": 0.0}, "than 0, got 0"),
        ({"kind": "token_noise", "start": 5, "fraction": 1.5}, "most 1, got 1"),
        ({"kind": "random_tokens", "start": 5, "fraction": 0.5}, "no fraction"),
        (FLIP | {"start": 5, "exponent_bit": 8}, "at most 7, got 8"),
        ({"kind": "gradient_inf", "start": 5, "exponent_bit": 3}, "takes no"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        FaultConfig(**values)
