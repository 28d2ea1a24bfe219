# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The monitor sees what the score of the whole series sees."""

import inspect
import json
import math
import sys

import numpy as np
import paddle
import pytest

from paddle_adagc.stability import (
    SpikeMonitor,
    robust_spike_score,
    spike_score,
)
from paddle_adagc.stability.spike_score import SpikeRule


def random_losses(seed, num_steps=1500):
    """Noise with jumps, plateaus, and single and repeated non-finite values."""
    rng = np.random.default_rng(seed)
    losses = 2 + 0.1 * rng.standard_normal(num_steps)
    hit = rng.choice(num_steps, 30, replace=False)
    losses[hit] += rng.choice([-1, 1], 30) * rng.uniform(0.2, 3, 30)
    losses[rng.choice(num_steps, 10)] = rng.choice(
        [np.nan, np.inf, -np.inf], 10
    )
    start = rng.integers(num_steps - 100)
    losses[start : start + 40] = np.nan
    start = rng.integers(num_steps - 100)
    losses[start : start + 90] = 2.0
    return losses


def assert_same_score(monitor, score):
    live = monitor.score()
    assert live.indices.tolist() == score.indices.tolist()
    assert live.events == score.events
    assert live.percent == score.percent
    assert live.num_unjudged == score.num_unjudged


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "rule",
    [
        {"window": 50, "sigma": 4.0},
        {"window": 7, "sigma": 2.5, "direction": "up", "skip": 100},
        {"window": 128, "sigma": 6.0, "deviation": "population"},
        {"window": 2, "sigma": 1.0, "direction": "down", "event_gap": 3},
    ],
)
def test_equals_the_score_of_the_series(seed, rule):
    losses = random_losses(seed)
    monitor = SpikeMonitor(**rule)
    reports = [monitor.update(loss) for loss in losses]
    score = spike_score(losses, **rule)
    assert score.num_spikes > 5
    assert_same_score(monitor, score)
    spikes = [spike for spike in reports if spike]
    assert [spike.step for spike in spikes] == score.indices.tolist()
    starts = [spike.step for spike in spikes if spike.starts_event]
    assert starts == [first for first, _ in score.events]


@pytest.mark.parametrize("cut", [0, 1, 30, 51, 700, 1499])
def test_resume_is_exact(cut):
    losses = random_losses(3)
    rule = {"window": 50, "sigma": 3.0, "skip": 10}
    whole, first = SpikeMonitor(**rule), SpikeMonitor(**rule)
    reports = [whole.update(loss) for loss in losses]
    for loss in losses[:cut]:
        first.update(loss)
    second = SpikeMonitor(**rule)
    second.set_state_dict(json.loads(json.dumps(first.state_dict())))
    resumed = [second.update(loss) for loss in losses[cut:]]
    assert repr(resumed) == repr(reports[cut:])
    assert second.state_dict() == whole.state_dict()
    assert_same_score(second, spike_score(losses, **rule))


def test_score_while_running():
    losses = random_losses(4, 300)
    monitor = SpikeMonitor(window=20, sigma=3.0, skip=15)
    for step, loss in enumerate(losses):
        monitor.update(loss)
        seen = losses[: step + 1]
        assert_same_score(monitor, spike_score(seen, 20, 3.0, skip=15))


def test_report_describes_the_spike():
    monitor = SpikeMonitor(window=4)
    for loss in (1.0, 2.0, 1.0, 2.0):
        assert monitor.update(loss) is None
    spike = monitor.update(9.0)
    assert (spike.step, spike.loss, spike.mean) == (4, 9.0, 1.5)
    assert spike.standard_deviation == pytest.approx(
        math.sqrt(1 / 3), rel=1e-15
    )
    assert str(spike).startswith("step 4: loss 9 is a spike")
    lost = monitor.update(math.nan)
    assert str(lost) == "step 5: loss nan is not finite"


def test_mean_and_deviation_equal_numpy():
    losses = random_losses(5)
    for deviation, ddof in (("sample", 1), ("population", 0)):
        monitor = SpikeMonitor(window=30, sigma=3.0, deviation=deviation)
        for step, loss in enumerate(losses):
            spike = monitor.update(loss)
            if spike is None or math.isnan(spike.mean):
                continue
            past = losses[:step][np.isfinite(losses[:step])][-30:]
            assert spike.mean == pytest.approx(past.mean(), rel=1e-14)
            assert spike.standard_deviation == pytest.approx(
                past.std(ddof=ddof), rel=1e-12, abs=1e-15
            )


def test_nan_before_the_window_is_full():
    spike = SpikeMonitor(window=4).update(math.nan)
    assert spike.step == 0
    assert math.isnan(spike.mean)
    assert math.isnan(spike.standard_deviation)


def test_deviation_beyond_float64_is_reported_as_infinite():
    largest = sys.float_info.max
    monitor = SpikeMonitor(window=2)
    monitor.update(largest)
    monitor.update(-largest)
    assert monitor.update(math.inf).standard_deviation == math.inf


def test_memory_is_the_window_and_the_spikes():
    monitor = SpikeMonitor(window=10, sigma=4.0)
    for loss in random_losses(6, 5000):
        monitor.update(loss)
    state = monitor.state_dict()
    assert len(state["window"]) == 10
    assert len(state["spikes"]) == monitor.score().num_spikes < 500


def test_accepts_tensors_and_numpy_scalars():
    monitor = SpikeMonitor(window=2)
    for loss in (paddle.to_tensor(1.0), np.float32(2.0), 3):
        monitor.update(loss)
    assert monitor.state_dict()["window"] == [2.0, 3.0]


@pytest.mark.parametrize("loss", ["1.0", b"1.0", None, [1.0, 2.0]])
def test_bad_loss_changes_nothing(loss):
    monitor = SpikeMonitor(window=2)
    before = monitor.state_dict()
    with pytest.raises(TypeError):
        monitor.update(loss)
    assert monitor.state_dict() == before


def test_bad_settings():
    with pytest.raises(ValueError, match="window must be at least 2, got 1"):
        SpikeMonitor(window=1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"window": None}, ValueError, "the state lacks window"),
        ({"config": {"window": 9}}, ValueError, "same settings"),
        ({"num_values": -1}, ValueError, "num_values .* got -1"),
        ({"num_values": 2.0}, TypeError, "2.0"),
        ({"window": [1.0] * 5}, ValueError, "holds 5 values"),
        ({"window": [1.0] * 3}, ValueError, "holds 3 values"),
        ({"window": [1.0, 1.0, 1.0, math.nan]}, ValueError, "finite, got nan"),
        ({"window": [1.0, 1.0, 1.0, "x"]}, TypeError, "'x'"),
        ({"spikes": [7, 3]}, ValueError, r"must ascend .* got \[7, 3\]"),
        ({"spikes": [8]}, ValueError, r"within \[0, 8\), got \[8\]"),
    ],
)
def test_refused_state_changes_nothing(change, error, message):
    monitor = SpikeMonitor(window=4)
    for loss in range(8):
        monitor.update(loss)
    good = monitor.state_dict()
    bad = {**good, **change}
    if change.get("window", 0) is None:
        del bad["window"]
    with pytest.raises(error, match=message):
        monitor.set_state_dict(bad)
    assert monitor.state_dict() == good


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("cut", [0, 3, 6])
def test_resume_before_the_window_is_full(cut, skip):
    losses = [math.nan, 4.0, math.nan, math.inf, 3.0, 2.0, 2.5, 9.0]
    rule = {"window": 4, "sigma": 2.0, "skip": skip}
    first, second = SpikeMonitor(**rule), SpikeMonitor(**rule)
    for loss in losses[:cut]:
        first.update(loss)
    second.set_state_dict(first.state_dict())
    resumed = [second.update(loss) for loss in losses[cut:]]
    assert repr(resumed) == repr([first.update(loss) for loss in losses[cut:]])


def test_the_rule_s_defaults_are_the_paper_s():
    rule = SpikeRule()
    assert (rule.window, rule.sigma, rule.skip) == (1000, 10.0, 0)
    assert type(SpikeRule(window=np.int64(9)).window) is int
    for score in (SpikeMonitor, spike_score, robust_spike_score):
        arguments = inspect.signature(score).parameters
        assert arguments["window"].default == 1000
        assert arguments["sigma"].default == 10.0
