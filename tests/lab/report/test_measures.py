# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Judged steps, jumps, measures, numbers as text, who wins, what pairs."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
from adagc_lab.report.charts import loss_chart
from adagc_lab.report.formatting import (
    format_list,
    format_range,
    format_same,
    format_spread,
)
from adagc_lab.report.judged import JudgedRun, judged_steps, worst_jump
from adagc_lab.report.measures import measure_experiment
from adagc_lab.report.tables import headline, measure_table
from lab.report.conftest import make_experiment

experiment = partial(make_experiment, skip_steps=0, windows=(50,))
RANDOM_TOKENS = [{"kind": "random_tokens", "tensors": []}]


def with_loss(run, loss, faults=None):
    """``run`` with another loss series and other faults."""
    return dataclasses.replace(
        run,
        metrics={"loss": np.asarray(loss, dtype=np.float64)},
        faults=faults or {},
    )


@pytest.fixture
def run(make_run):
    """Any run, to be given another loss."""
    return make_run(steps=30, layers=0)


def peaks(*parts):
    """200 losses of 1, but for parts ``(start, stop, loss)``."""
    loss = np.ones(200)
    for start, stop, value in parts:
        loss[start:stop] = value
    return loss


@pytest.mark.parametrize(
    ("loss", "skip_steps", "jump"),
    [
        (np.tile([0.02, 0], 100) + peaks((120, 127, 2.99)), 0, (2, 120)),
        (peaks((150, 200, np.nan)), 0, (np.inf, 150)),
        (peaks((60, 61, 9.0), (150, 151, 2.0)), 0, (8, 60)),
        (peaks((60, 61, 9.0), (150, 151, 2.0)), 61, (1, 150)),
        (peaks((60, 61, 9.0), (150, 151, 2.0)), 160, None),
    ],
)
def test_worst_jump_by_hand(run, loss, skip_steps, jump):
    found = worst_jump(with_loss(run, loss), skip_steps)
    assert found == (jump and pytest.approx(jump))


def test_judged_steps_leave_out_corrupted_losses_only(run):
    faults = {
        3: RANDOM_TOKENS,
        4: [{"kind": "gradient_nan", "tensors": []}],
        5: [{"kind": "activation_scale", "tensors": ["a"]}],
        6: [
            {"kind": "gradient_inf", "tensors": ["a"]},
            {"kind": "shuffled_labels", "tensors": []},
        ],
    }
    steps = judged_steps(with_loss(run, np.ones(8), faults), 1)
    assert steps.tolist() == [1, 2, 4, 7]


def test_corrupted_batches_are_left_out_and_spikes_keep_their_steps(run):
    rng = np.random.default_rng(0)
    loss = 1 + 0.01 * rng.standard_normal(200)
    loss[100], loss[103], loss[196:] = 8.0, 4.0, [9.0, 1.2, 1.2, 1.5]
    faults = {100: RANDOM_TOKENS, 196: RANDOM_TOKENS}
    record = with_loss(run, loss, faults)
    exp = experiment({"AdaGC": [record]})
    (line,) = loss_chart(exp).lines
    assert line.marks[0] == (103, 4.0)
    assert not {100, 196} & {step for step, _ in line.marks}
    assert np.flatnonzero(np.isnan(line.values)).tolist() == [100, 196]
    (measures,) = measure_experiment(exp)["AdaGC"]
    assert measures["judged_50"] == 148
    assert measures["worst_jump_step"] == 103
    last = np.delete(loss, [100, 196])[-98:]
    assert measures["final_loss"] == pytest.approx(last.mean())


def test_a_clip_in_the_optimizer_is_not_measured(run):
    values = np.full(30, 0.25)
    metrics = {"loss": values, "clipped_fraction": values}
    runs = [
        dataclasses.replace(
            run, metrics=metrics, run={"config": {"clip": {"name": name}}}
        )
        for name in ("adagc", "none")
    ]
    exp = experiment({"AdaGC": runs[:1], "AGC": runs[1:]})
    measures = measure_experiment(exp)
    assert measures["AdaGC"][0]["clipped_percent"] == 25
    assert measures["AGC"][0]["clipped_percent"] is None
    assert measures["AGC"][0]["clipped_percent_end"] is None


def test_a_diverged_run_is_above_its_twin_to_the_end(run):
    clean = with_loss(run, np.ones(30))
    cut = with_loss(
        run, np.ones(20), {5: [{"kind": "activation_nan", "tensors": []}]}
    )
    for status, num_missing in (("diverged", 10), ("running", 0)):
        faulty = dataclasses.replace(cut, run=cut.run | {"status": status})
        excess = JudgedRun(faulty, experiment({"A": [faulty]}), clean).excess
        assert np.isinf(excess.excess).sum() == num_missing


def test_experiment_refuses_runs_that_do_not_pair(make_run):
    one, two = make_run(seed=1, steps=5), make_run(seed=2, steps=5)
    for runs, fields, message in (
        ({"GlobalGC": [one], "AdaGC": [two]}, {}, r"AdaGC has seeds \[2\]"),
        ({"GlobalGC": [one, two], "AdaGC": [one]}, {}, r"expected \[1, 2\]"),
        ({"GlobalGC": []}, {}, "at least one run"),
        ({"AdaGC": [one]}, {"clean_runs": {"AGC": [one]}}, "has 'AGC'"),
        ({"AdaGC": [one]}, {"clean_runs": {"AdaGC": [two]}}, r"expected \[1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            experiment(runs, **fields)


FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_list([9, 8, 1200]), "9 / 8 / 1,200"),
        (format_list([3, None, math.inf]), "3 / – / ∞"),
        (format_spread([1.0, 2.0, 3.0], ".2f"), "2.00 ± 1.00"),
        (format_spread([1.0, math.nan], ".2f"), "1.00 / NaN"),
        (format_spread([None, None], ".2f"), "–"),
        (format_spread([1.0, None, 3.0], ".2f"), "2.00 ± 1.41 (2 of 3)"),
        (format_spread([1.0, None], ".2f"), "1.00 / –"),
        (format_same([400, 400]), "400"),
        (format_same(["finished", "diverged"]), "finished / diverged"),
        (format_range(FIVE, ".1f"), "0.1 / 0.2 / 0.3 / 0.4 / 0.5"),
        (format_range([*FIVE, 0.9], ".2f"), "0.35 (0.10-0.90)"),
        (format_range([*FIVE, None, 0.9], ".1f"), "0.3 (0.1-0.9) (6 of 7)"),
        (format_range([0.1, None, 0.3], ".1f"), "0.1 / 0.3 (2 of 3)"),
        (format_range([None], ".1f"), "–"),
        (
            format_range([*FIVE, math.inf], ".1f"),
            "0.1 / 0.2 / 0.3 / 0.4 / 0.5 / ∞",
        ),
    ],
)
def test_values_of_several_seeds(text, expected):
    assert text == expected


def test_the_best_follows_the_numbers(make_run):
    rng = np.random.default_rng(0)
    loss = 1 + 0.001 * rng.standard_normal(200)
    spiky = loss.copy()
    spiky[60:63] = 3.0
    run = make_run(steps=30, layers=0)
    high, calm, spiky = (
        [dataclasses.replace(run, metrics={"loss": series}, faults={})]
        for series in (loss + 0.25, loss, spiky)
    )

    def best(*runs):
        named = dict(zip(("GlobalGC", "AdaGC", "AGC"), runs, strict=True))
        table = measure_table(experiment(named))
        return {row.measure.name: row.best for row in table.rows}

    found = best(spiky, calm, high)
    assert found["events_50"] == ["AdaGC", "AGC"]
    assert found["final_loss"] == ["GlobalGC", "AdaGC"]
    assert found["status"] == []
    # The same curves under each other's name: the best goes with the numbers.
    assert best(high, calm, spiky)["events_50"] == ["GlobalGC", "AdaGC"]


def test_spikes_and_damage_are_counted(make_run):
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", steps=1500, spikes={1400: 2})],
        "AdaGC": [make_run(steps=1500)],
    }
    exp = make_experiment(runs, windows=(1000, 200), skip_steps=200)
    first, second = headline(exp)
    assert first.startswith("GlobalGC: ")
    assert "spikes in 300 judged steps, worst loss jump 2.0" in first
    assert first.endswith("nat at step 1,400")
    assert second.startswith("AdaGC: no spikes in 300 judged steps, worst ")
