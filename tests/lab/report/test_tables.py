# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers as text, the table of measures, who wins, sentences."""

import dataclasses
import math

import numpy as np
import pytest
from lab.report.conftest import make_experiment

from paddle_adagc.lab.report.formatting import (
    format_list,
    format_range,
    format_same,
    format_spread,
)
from paddle_adagc.lab.report.measures import measure_experiment
from paddle_adagc.lab.report.tables import (
    headline,
    measure_table,
)

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
    spiky[120:123] = 3.0
    run = make_run(steps=30, layers=0)
    high, calm, spiky = (
        [dataclasses.replace(run, metrics={"loss": series}, faults={})]
        for series in (loss + 0.25, loss, spiky)
    )

    def best(*runs):
        named = dict(zip(("GlobalGC", "AdaGC", "AGC"), runs, strict=True))
        experiment = make_experiment(
            named, skip_steps=0, windows=(50,), last_steps=10
        )
        table = measure_table(experiment, measure_experiment(experiment))
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
    experiment = make_experiment(runs, windows=(1000, 200), skip_steps=200)
    first, second = headline(experiment)
    assert first.startswith("GlobalGC: ")
    assert "spikes in 300 judged steps, worst loss jump 2.0" in first
    assert first.endswith("nat at step 1,400")
    assert second.startswith("AdaGC: no spikes in 300 judged steps, worst ")
