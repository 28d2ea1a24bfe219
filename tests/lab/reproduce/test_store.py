# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows that are written, appended, replaced and read."""

import numpy as np
import pytest
from adagc_lab.reproduce import store
from lab.reproduce.conftest import make_row


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
