# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spike score against hand-worked answers and a literal reference."""

import json
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paddle_adagc
from paddle_adagc.stability import SpikeMonitor, robust_spike_score, spike_score
from paddle_adagc.stability.spike_score import count_events, window_for

SCORES = pytest.mark.parametrize("score", [spike_score, robust_spike_score])


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


def two_pass_spikes(losses, window, sigma, robust=False):
    """Mean and deviation (or median and MAD) of every window by NumPy."""
    spikes = []
    for i in range(window, len(losses)):
        recent = losses[i - window : i]
        if robust:
            centre = np.median(recent)
            spread = 1.482602218505602 * np.median(np.abs(recent - centre))
        else:
            centre, spread = recent.mean(), recent.std(ddof=1)
        if abs(losses[i] - centre) >= sigma * spread:
            spikes.append(i)
    return spikes


def noisy_losses(num_steps=3000, num_spikes=25, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    losses = offset + 0.1 * rng.standard_normal(num_steps)
    hit = rng.choice(num_steps, num_spikes, replace=False)
    losses[hit] += rng.choice([-1, 1], num_spikes) * rng.uniform(
        0.3, 2, num_spikes
    )
    return losses


def test_hand_worked():
    # Window 1, 3, 2: mean 2, deviation 1 (sample).
    losses = [1.0, 3.0, 2.0, 4.0]
    assert spike_score(losses, 3, sigma=2.0).indices.tolist() == [3]
    assert spike_score(losses, 3, sigma=2.001).num_spikes == 0
    assert spike_score([1.0, 3.0, 2.0, 2.0], 3, sigma=1e-9).num_spikes == 0
    # Window 1, 2, 1, 2: mean 1.5, deviation 0.577.
    losses = [1.0, 2.0, 1.0, 2.0, 2.5]
    assert spike_score(losses, window=4, sigma=2).num_spikes == 0
    score = spike_score(losses, window=4, sigma=1.73)
    assert score.indices.tolist() == [4]
    assert score.percent == 20.0
    assert score.num_unjudged == 4
    assert score.num_judged == score.num_values - 4
    assert score.num_events == 1


@SCORES
def test_values_above_and_below_are_spikes(score):
    losses = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 9.0, 0.0, 1.0, -8.0]
    assert score(losses, window=6, sigma=1.5).indices.tolist() == [6, 9]


def test_a_spike_enters_the_window_and_hides_the_next():
    losses = np.tile([0.0, 0.1], 50)
    losses[[60, 70]] = 5.0
    assert spike_score(losses, window=20).indices.tolist() == [60]
    assert robust_spike_score(losses, window=20).indices.tolist() == [60, 70]


@SCORES
@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e30])
def test_constant_series_has_no_spikes(score, value):
    found = score(np.full(60, value), window=7, sigma=0.01)
    assert (found.num_spikes, found.events) == (0, ())


@SCORES
def test_leaving_a_constant_is_a_spike(score):
    losses = np.full(30, 0.1)
    losses[20] = 0.1000001
    assert score(losses, window=10).indices.tolist() == [20]


@SCORES
@pytest.mark.parametrize("num_steps", [0, 1, 9, 10])
def test_window_not_filled(score, num_steps):
    losses = [10.0**i for i in range(num_steps)]
    result = score(losses, window=10, sigma=0.1)
    assert (result.num_spikes, result.percent) == (0, 0.0)
    assert result.num_unjudged == result.num_values == num_steps


@SCORES
def test_nonfinite_values_are_spikes_and_stay_out_of_the_window(score):
    losses = noisy_losses(300, 0)
    losses[[3, 150]] = 9.0
    holes = np.insert(losses, [3, 60, 60, 150], [np.nan, np.inf, -np.inf, 1e3])
    holes[holes == 1e3] = np.nan
    holes = np.insert(holes, [220] * 100, np.nan)
    result = score(holes, window=50)
    # 150 moved by the four values put in before it.
    expected = [3, 61, 62, 153, 154, *range(220, 320)]
    assert result.indices.tolist() == expected
    assert result.num_unjudged == 50
    assert score(losses, window=50).indices.tolist() == [150]
    assert score([np.nan] * 5, window=2).percent == 100.0


@SCORES
@pytest.mark.parametrize("skip", [1, 37, 200])
def test_skip_equals_cutting_the_series(score, skip):
    losses = noisy_losses(600)
    losses[[20, 100, 300]] = np.nan
    losses[:100] += 5.0
    cut = score(losses[skip:], 50, 4.0)
    skipped = score(losses, 50, 4.0, skip=skip)
    assert cut.num_spikes > 1
    assert skipped.indices.tolist() == (cut.indices + skip).tolist()
    assert skipped.num_unjudged == cut.num_unjudged + skip
    assert score(losses[:9], 50, 4.0, skip=skip + 9).num_unjudged == 9


def test_events_merge_neighbours():
    losses = np.tile([0.0, 0.1], 100)
    for step, size in ((100, 1), (101, 1e3), (111, 1e6), (122, 1e9)):
        losses[step] = size * 100
    score = spike_score(losses, window=20, sigma=4)
    assert score.indices.tolist() == [100, 101, 111, 122]
    assert score.events == ((100, 111), (122, 122))


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
    sigma=st.sampled_from([0.3, 0.7, 1.1, 3.7]),  # no ties
)
def test_equals_the_literal_definition(losses, window, sigma):
    score = spike_score(losses, window, sigma)
    assert score.indices.tolist() == literal_spikes(losses, window, sigma)
    num_finite = sum(map(math.isfinite, losses))
    assert score.num_unjudged == min(num_finite, window)


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6, 1e9])
@pytest.mark.parametrize("robust", [False, True])
def test_equals_two_passes_at_any_offset(monkeypatch, offset, robust):
    score = robust_spike_score if robust else spike_score
    losses = noisy_losses(offset=offset)
    expected = two_pass_spikes(losses, 100, 4.0, robust)
    assert len(expected) > 5
    assert score(losses, 100, 4.0).indices.tolist() == expected
    module = sys.modules["paddle_adagc.stability.spike_score"]
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 7 * 100)
    assert score(losses, 100, 4.0).indices.tolist() == expected


def test_robust_falls_back_where_most_values_are_equal():
    # The MAD is 0; the mean absolute deviation is 2 * 0.1 / 7.
    losses = [1.0, 1.0, 1.1, 1.0, 1.0, 0.9, 1.0]
    assert robust_spike_score([*losses, 1.1], 7, 3.0).num_spikes == 0
    assert robust_spike_score([*losses, 1.5], 7, 10.0).num_spikes == 1


@SCORES
def test_accepts_tensors_and_float32(score):
    losses = noisy_losses(500).astype(np.float32)
    expected = score(losses, 50, 4.0).indices.tolist()
    assert expected
    for same in (losses.tolist(), paddle.to_tensor(losses)):
        assert score(same, 50, 4.0).indices.tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"window": 1}, ValueError, "window must be at least 2, got 1"),
        ({"window": 10.0}, TypeError, "window must be an integer, got 10.0"),
        ({"window": True}, TypeError, "got True"),
        ({"sigma": 0}, ValueError, "sigma must be positive, got 0"),
        ({"sigma": math.nan}, ValueError, "sigma must be finite, got nan"),
        ({"sigma": "10"}, TypeError, "'10'"),
        ({"skip": -1}, ValueError, "skip must be at least 0, got -1"),
    ],
)
def test_bad_settings(arguments, error, message):
    with pytest.raises(error, match=message):
        spike_score([1.0, 2.0], **arguments)
    if "skip" not in arguments:
        with pytest.raises(error, match=message):
            SpikeMonitor(**arguments)


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        (np.zeros((2, 3)), ValueError, r"one-dimensional, got shape \(2, 3\)"),
        (1.0, ValueError, r"shape \(\)"),
        (["1.0", "2.0"], TypeError, "real numbers, got .*'1.0'"),
        ("abc", TypeError, "'abc'"),
        ([1.0, None], TypeError, "None"),
        ([1j], TypeError, "complex"),
        ([True], TypeError, "bool"),
    ],
)
def test_bad_losses(losses, error, message):
    with pytest.raises(error, match=message):
        spike_score(losses)


def test_bfloat16_bits_are_not_losses():
    losses = paddle.ones([3]).astype("bfloat16")
    with pytest.raises(TypeError, match="cast it to float32"):
        spike_score(losses)


def test_stability_does_not_import_paddle():
    package = Path(paddle_adagc.__file__).parent
    code = (
        "import sys, types\n"
        "parent = types.ModuleType('paddle_adagc')\n"
        f"parent.__path__ = [{str(package)!r}]\n"
        "sys.modules['paddle_adagc'] = parent\n"
        "from paddle_adagc.stability import spike_score\n"
        "assert spike_score([1.0]).num_unjudged == 1\n"
        "assert 'paddle' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_event_with_a_dip_is_one_at_every_threshold():
    values = np.array([0.0, 3.0, *[1.0] * 20, 3.0, 0.0])
    steps = np.arange(len(values))
    assert count_events(steps, values, [0.5, 2.0]) == {0.5: 1, 2.0: 1}
    assert count_events(steps, values, [2.0]) == {2.0: 2}


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
    ],
)
def test_events_above_thresholds(peaks, thresholds, expected):
    steps, values = np.arange(60), np.zeros(60)
    values[[*peaks]] = [*peaks.values()]
    assert count_events(steps, values, thresholds) == expected


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


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("window", "sigma"), [(50, 4.0), (7, 2.5), (2, 1.0)])
def test_equals_the_score_of_the_series(seed, window, sigma):
    losses = random_losses(seed)
    monitor = SpikeMonitor(window, sigma)
    reports = [monitor.update(loss) for loss in losses]
    score, live = spike_score(losses, window, sigma), monitor.score()
    assert score.num_spikes > 5
    assert live.indices.tolist() == score.indices.tolist()
    assert live.num_unjudged == score.num_unjudged
    assert live.num_values == score.num_values
    spikes = [spike for spike in reports if spike]
    assert [spike.step for spike in spikes] == score.indices.tolist()
    starts = [spike.step for spike in spikes if spike.starts_event]
    assert starts == [first for first, _ in score.events]


SHORT = np.array([math.nan, 4.0, math.nan, math.inf, 3.0, 2.0, 2.5, 9.0])


@pytest.mark.parametrize(
    ("losses", "window", "cut"),
    [
        *((random_losses(3), 50, cut) for cut in (0, 30, 51, 700)),
        *((SHORT, 4, cut) for cut in (0, 3, 6)),  # before the window is full
    ],
)
def test_resume_is_exact(losses, window, cut):
    whole, first = SpikeMonitor(window, 3.0), SpikeMonitor(window, 3.0)
    reports = [whole.update(loss) for loss in losses]
    for loss in losses[:cut]:
        first.update(loss)
    second = SpikeMonitor(window, 3.0)
    state = json.loads(json.dumps(first.state_dict()))
    state["config"]["deviation"] = "sample"  # of an earlier version
    second.set_state_dict(state)
    resumed = [second.update(loss) for loss in losses[cut:]]
    assert repr(resumed) == repr(reports[cut:])
    assert second.state_dict() == whole.state_dict()


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
    spike = SpikeMonitor(window=4).update(math.nan)  # the window is not full
    assert spike.step == 0
    assert np.isnan([spike.mean, spike.standard_deviation]).all()


@pytest.mark.parametrize("loss", ["1.0", b"1.0", None, [1.0, 2.0]])
def test_bad_loss_changes_nothing(loss):
    monitor = SpikeMonitor(window=2)
    before = monitor.state_dict()
    with pytest.raises(TypeError):
        monitor.update(loss)
    assert monitor.state_dict() == before


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"window": None}, ValueError, "the state lacks window"),
        ({"config": {"window": 9}}, ValueError, "same settings"),
        ({"num_values": -1}, ValueError, "num_values .* got -1"),
        ({"num_values": 2.0}, TypeError, "2.0"),
        ({"window": [1.0] * 5}, ValueError, "holds 5 values"),
        ({"num_values": 2}, ValueError, "at most 2"),
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


def test_the_defaults_are_the_paper_s():
    losses = np.r_[np.arange(1000.0) % 2, 6.0]
    assert spike_score(losses).num_spikes == 1
    assert spike_score(losses[1:]).num_judged == 0
    assert spike_score(np.r_[losses[:1000], 5.4]).num_spikes == 0
    config = {"window": 1000, "sigma": 10.0}
    assert SpikeMonitor().state_dict()["config"] == config
    for last, num_spikes in ((8.0, 1), (7.9, 0)):  # MAD 0.5, times 1.4826
        found = robust_spike_score(np.r_[losses[:1000], last])
        assert (found.num_spikes, found.num_unjudged) == (num_spikes, 1000)
    assert [window_for(1000), window_for(1001)] == [200, 1000]
