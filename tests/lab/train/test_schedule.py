# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules, by hand."""

import pytest

from paddle_adagc.lab.train.config import ScheduleConfig
from paddle_adagc.lab.train.optimizers import learning_rate, make_scheduler


def rates(max_steps, **fields):
    config = ScheduleConfig(learning_rate=2.0, **fields)
    return [learning_rate(config, step, max_steps) for step in range(max_steps)]


def test_constant_after_a_linear_warm_up():
    assert rates(6, kind="constant", warmup_steps=4) == [
        0.5,
        1.0,
        1.5,
        2.0,
        2.0,
        2.0,
    ]


def test_cosine_falls_from_the_highest_rate_to_the_minimum():
    values = rates(5, kind="cosine", min_ratio=0.5)
    assert values[0] == 2.0
    assert values == sorted(values, reverse=True)
    config = ScheduleConfig(learning_rate=2.0, kind="cosine", min_ratio=0.5)
    assert learning_rate(config, 5, 5) == pytest.approx(1.0)
    half_way = ScheduleConfig(learning_rate=2.0, kind="cosine")
    assert learning_rate(half_way, 5, 10) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shape", "half"), [("linear", 1.0), ("cosine", 1.0), ("sqrt", 2 - 2**0.5)]
)
def test_wsd_is_flat_and_then_decays(shape, half):
    values = rates(20, kind="wsd", decay_fraction=0.2, decay_shape=shape)
    assert values[:17] == [2.0] * 17
    assert values[18] == pytest.approx(half)
    assert values[19] < values[18]


def test_scheduler_gives_the_rates_step_by_step():
    config = ScheduleConfig(learning_rate=2.0, kind="wsd", warmup_steps=3)
    scheduler = make_scheduler(config, 10)
    got = []
    for _ in range(10):
        got.append(scheduler.get_lr())
        scheduler.step()
    assert got == pytest.approx(
        [learning_rate(config, step, 10) for step in range(10)]
    )
