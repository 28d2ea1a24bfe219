# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Peaks, damage, pairs and limits on rows whose answers are known."""

import numpy as np
import pandas as pd
import pytest
from adagc_lab.report.differences import difference
from adagc_lab.report.measures import damage, judged, measure, peaks, spans
from adagc_lab.reproduce.pairs import Pairs
from lab.reproduce.conftest import make_row


def flat(*peaks, steps=300, level=1.0):
    loss = np.full(steps, level)
    for step, height in peaks:
        loss[step] += height
    return loss


def test_peaks_are_groups_of_steps_above_the_median_before():
    loss = flat((100, 0.6), (105, 2.0), (200, 0.4), (250, 0.7))
    assert peaks(loss) == [2.0, pytest.approx(0.7)]
    assert len(peaks(loss, 0.3)) == 3
    assert peaks(flat((20, 5.0))) == []


def test_corrupted_batches_and_the_descent_are_not_judged():
    steps = [*range(120, 122), 7, 290]
    loss = flat((60, 3.0), (120, 4.0), (200, 1.0))
    row = make_row(loss=loss, skip_steps=5, left_out=spans(steps))
    assert row["left_out"] == "7-7;120-121;290-290"
    absent = np.flatnonzero(np.isnan(judged(row))).tolist()
    assert absent == [*range(5), *sorted(steps)]
    assert measure(row)["peaks"] == 2
    assert measure(row)["worst"] == 3.0


def test_a_run_that_diverged_is_infinitely_bad_and_one_without_losses_unknown():
    assert measure(make_row(loss=flat(), status="diverged"))["end"] == np.inf
    assert measure(make_row(steps=2500)) == {}


def test_damage_is_the_mean_over_another_run_from_the_first_fault_on():
    clean = make_row(loss=flat(level=1.0))
    loss = flat((150, 9.0), (160, 0.8), level=1.0)
    loss[151:] += 0.1
    row = make_row(loss=loss, faults="150-150", left_out="150-150")
    found = damage(row, clean)
    assert found["damage"] == pytest.approx(0.1 + 0.8 / 149)
    assert found["fault_peaks"] == 1
    assert found["worst_rise"] == pytest.approx(0.9)
    row |= {"loss": loss[:150], "faults": "149-149", "left_out": "149-149"}
    assert damage(row, clean) == {}
    assert damage(row | {"status": "diverged"}, clean)["damage"] == np.inf


def test_pairs_have_the_same_seed_length_and_processor():
    rows = [
        make_row("R", 1, flat(level=1.0)),
        make_row("R", 1, flat(level=5.0), processor=""),
        make_row("A", 1, flat(level=1.5)),
        make_row("A", 1, flat(level=9.0), processor=""),
        make_row("R", 2, flat(level=2.0)),
        make_row("A", 2, flat(level=2.0), processor="other"),
        make_row("A", 3, flat(level=2.0, steps=400)),
    ]
    pairs = Pairs(pd.DataFrame(rows), "R")
    assert pairs.values("A", 300, "end") == ([1.0], [1.5])
    assert (pairs.lengths(), pairs.methods()) == ([300, 400], ["A"])


def test_damage_needs_a_twin_of_its_own_or_of_the_reference():
    clean = flat(level=1.0)
    fault = {"faults": "100-100"}
    rows = [
        make_row("R", 1, clean + 0.2, **fault),
        make_row("R", 1, clean, clean_twin=1),
        make_row("A", 1, clean + 0.5, **fault),
        make_row("A", 1, clean + 0.4, clean_twin=1),
    ]
    pairs = Pairs(pd.DataFrame(rows), "R")
    others, ours = pairs.values("A", 300, "damage")
    assert (others, ours) == (pytest.approx([0.2]), pytest.approx([0.1]))
    _, ours = pairs.values("A", 300, "damage_over_reference")
    assert ours == pytest.approx([0.5])


def test_limits_hold_the_mean_in_most_samples():
    rng = np.random.default_rng(0)
    samples = rng.normal(1.0, 2.0, (100, 8))
    found = [difference(sample.tolist()) for sample in samples]
    held = sum(f.low <= 1.0 <= f.high for f in found)
    assert 90 <= held <= 99
    assert difference([1.0, np.nan]) is None
    assert difference([2.0, 2.0]) == (2.0, 2.0, 2.0, 2)
    assert difference([2.0, np.inf]) == (np.inf, 2.0, np.inf, 2)
