# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of results: their files, and measures whose answers are known."""

import numpy as np
import pandas as pd
import pytest
from adagc_lab.report.differences import difference
from adagc_lab.report.measures import damage, judged, measure, peaks, spans
from adagc_lab.reproduce import store
from adagc_lab.reproduce.pairs import Pairs


def make_row(method="A", seed=1, loss=(), **fields):
    """A row of results."""
    found = {
        **{"target": "t", "experiment": "e", "method": method, "seed": seed},
        **{"steps": len(loss), "processor": "cpu", "clean_twin": 0},
        **{"data": "text"},
        **{"status": "finished", "skip_steps": 0, "faults": "", "left_out": ""},
        **{"digest": f"{method}{seed}", "num_losses": len(loss)},
        "loss": np.array(loss, np.float64),
    }
    return {**found, **fields}


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


def test_rows_come_back_with_losses_to_a_thousandth(tmp_path):
    loss = [1.23456, np.nan, 12.0]
    first = make_row(seed=1, loss=loss, validation_loss=0.123456789)
    store.append(tmp_path, "t", [first, make_row(seed=2, steps=2500)])
    rows = store.load(tmp_path)
    assert rows["seed"].tolist() == [1, 2]
    np.testing.assert_array_equal(rows["loss"][0], [1.235, np.nan, 12.0])
    assert rows["validation_loss"][0] == 0.1234568
    assert rows["num_losses"].tolist() == [3, 0]
    assert np.isnan(rows["validation_loss"][1])


def test_more_seeds_are_merged_with_the_rows_that_are_there(tmp_path):
    store.append(tmp_path, "t", [make_row(loss=[1.0, 2.0], step_ms=1.0)])
    path = tmp_path / "t.csv"
    before = path.read_text().splitlines()
    # The same run again, with another time of its steps: what is there stays.
    again = make_row(seed=1, loss=[1.0, 2.5], step_ms=7.0)
    store.append(tmp_path, "t", [again, make_row(seed=2, loss=[3.0])])
    assert path.read_text().splitlines()[:2] == before
    # The same by folders of results, as another machine brings them.
    other = tmp_path / "other"
    store.append(other, "t", [again, make_row(seed=3, loss=[5.0])])
    store.append(other, "u", [make_row(seed=1, loss=[6.0], target="u")])
    assert store.merge(tmp_path, other) == ["t", "u"]
    assert path.read_text().splitlines()[:2] == before
    rows = store.load(tmp_path)
    assert rows["seed"].tolist() == [1, 2, 3, 1]
    losses = [loss.tolist() for loss in rows["loss"]]
    assert losses == [[1.0, 2.0], [3.0], [5.0], [6.0]]
    # A run of another config takes the old one's place.
    new = make_row(seed=1, loss=[4.0, 5.0], digest="new")
    store.append(tmp_path, "t", [new])
    assert store.load(tmp_path)["loss"][0].tolist() == [4.0, 5.0]


def test_files_that_do_not_fit_are_named(tmp_path):
    store.append(tmp_path, "t", [make_row(loss=[1.0, 2.0])])
    np.savez_compressed(tmp_path / "t.npz", loss=np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"t\.npz has 1 losses, t\.csv says 2"):
        store.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no results"):
        store.load(tmp_path / "nothing")
