# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stored losses: error, size, and what they do to spike counts."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paddle_adagc.lab.reproduce.results import (
    LAST_CODE,
    decode_losses,
    encode_losses,
)
from paddle_adagc.stability import WATCHES, Monitor
from paddle_adagc.stability.spike_score import spike_score

ERNIE = Path(__file__).parents[3] / "results/ernie.jsonl"


def noisy_run(seed, level, noise, num_steps=2500):
    """A descent to ``level`` with relative noise and a few jumps."""
    rng = np.random.default_rng(seed)
    loss = level + 5 * np.exp(-np.arange(num_steps) / 100)
    loss *= np.exp(noise * rng.normal(size=num_steps))
    loss[rng.integers(1300, num_steps, 5)] *= rng.uniform(1.5, 8, 5)
    return loss


def relative_error(packed):
    """Largest relative error of the finite losses."""
    return np.expm1((packed["high"] - packed["low"]) / (2 * LAST_CODE))


@given(
    hnp.arrays(
        np.float64,
        st.integers(0, 50),
        elements=st.floats(1e-3, 1e3) | st.sampled_from([np.nan, np.inf]),
    )
)
def test_losses_come_back_within_the_stated_error(losses):
    packed = encode_losses(losses)
    back = decode_losses(packed)
    finite = np.isfinite(losses)
    np.testing.assert_array_equal(back[~finite], losses[~finite])
    error = np.abs(back[finite] / losses[finite] - 1)
    assert (error <= relative_error(packed) * (1 + 1e-6) + 1e-12).all()


@pytest.mark.parametrize(("level", "noise"), [(0.06, 0.1), (1.5, 0.05)])
def test_size_error_and_spike_counts(level, noise):
    for seed in range(4):
        losses = noisy_run(seed, level, noise)
        packed = encode_losses(losses)
        assert len(packed["data"]) < 7000
        assert relative_error(packed) < 6e-5
        back = decode_losses(packed)
        for window in (1000, 200):
            stored, raw = (
                spike_score(series, window, skip=200)
                for series in (back, losses)
            )
            assert stored.indices.tolist() == raw.indices.tolist()


def test_what_was_stored_is_stored_alike_again():
    back = decode_losses(encode_losses(noisy_run(0, 0.06, 0.1)))
    np.testing.assert_allclose(
        decode_losses(encode_losses(back)), back, rtol=1e-12
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": "float16"}, "'float16' is unknown"),
        ({"data": "AAAA"}, "damaged"),
        ({"num_steps": 4}, "expected 8"),
    ],
)
def test_damaged_series_are_named(change, message):
    packed = encode_losses(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match=message):
        decode_losses({**packed, **change})


def test_a_negative_loss_is_named():
    with pytest.raises(ValueError, match=r"-0\.5 is negative"):
        encode_losses(np.array([1.0, -0.5]))


def calm_losses(path, experiment):
    """Stored losses of an experiment's runs without a fault or a spike."""
    current = None
    for row in map(json.loads, path.read_text().splitlines()):
        current = row["name"] if row["kind"] == "experiment" else current
        series = row.get("series")
        if current == experiment and series and not series["faults"]:
            losses = decode_losses(series["loss"])
            if np.isfinite(losses).all() and not spike_score(losses).num_spikes:
                yield losses


def test_a_monitor_is_quiet_on_the_committed_losses():
    """docs/quickstart.md says how quiet."""
    series = [*calm_losses(ERNIE, "recipe")]
    alarms = [
        alarm
        for losses in series
        for alarm in Monitor({"loss": WATCHES["loss"]}).update(
            (step, {"loss": loss}) for step, loss in enumerate(losses.tolist())
        )
    ]
    assert (len(series), sum(map(len, series)), len(alarms)) == (24, 60_000, 1)
