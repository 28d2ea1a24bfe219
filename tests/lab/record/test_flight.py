# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What several ranks' files of an event say together."""

import dataclasses
import math
import os

import numpy as np
import pytest
from adagc_lab.record.flight import (
    FOLDER,
    NUM_KEPT,
    Event,
    Flight,
    FlightRecorder,
    event_path,
    load_event,
)

from paddle_adagc.clips.last_step import Rows


def flight(names, norm, loss=math.nan, steps=3):
    """A rank whose tensors had the same norm in all steps."""
    shape = (steps, len(names))
    rows = np.broadcast_to(np.array(norm, np.float32), shape)
    return Flight(
        reason=np.array("alarm"),
        tensor_names=np.array(names),
        step=np.arange(5, 5 + steps),
        samples=np.zeros((steps, 2), np.int64),
        learning_rate=np.full(steps, 0.1),
        loss=np.full(steps, loss),
        norm=rows,
        h=np.where(rows == 0, 1, rows / 2),
        gamma=rows / 4,
    )


def test_a_tensor_is_that_of_the_rank_that_has_its_gradient():
    owner = flight(["a", "b"], [2.0, 0.0], loss=3.0)
    other = flight(["a", "b", "c"], [0.0, 4.0, 0.0])
    event = Event("alarm", [owner, other])
    assert event.tensors(6) == {
        "a": (2.0, 1.0, 0.5),
        "b": (4.0, 2.0, 1.0),
        "c": (0.0, 1.0, 0.0),
    }
    assert event.tensors(9) == {}
    assert event.loss(6) == 3.0
    assert math.isnan(Event("alarm", [other]).loss(6))


def test_the_last_step_with_norms_is_shown():
    event = Event("e", [flight(["a"], [[2.0], [2.0], [np.nan]])])
    assert (event.place(None), event.place(5)) == (1, 0)
    nothing = Event("e", [flight(["a"], [np.nan])])
    assert nothing.place(None) == 2


def save(directory, step, rank, age):
    path = event_path(directory, step, "alarm", rank)
    flight(["a"], [1.0], loss=float(rank)).save(path)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_events_come_by_age_and_ranks_by_number(tmp_path):
    assert load_event(tmp_path) is None
    for rank in (10, 2, 0):
        save(tmp_path, 900, rank, age=50)
    save(tmp_path, 100, 0, age=5)
    event = load_event(tmp_path)
    assert (event.name, len(event.ranks)) == ("00000100-alarm", 1)
    assert load_event(tmp_path, step=77) is None
    for path in (tmp_path / FOLDER).glob("00000100*"):
        path.unlink()
    ranks = load_event(tmp_path, step=6).ranks
    assert [rank.loss[0] for rank in ranks] == [0, 2, 10]


ROW = {"step": 50, "learning_rate": 0.1, "samples": [0, 1]}


def test_a_rank_s_files_are_rotated(tmp_path):
    for step in range(NUM_KEPT + 1):
        save(tmp_path, step, rank=0, age=1 + step)
    save(tmp_path, 99, rank=1, age=1000)
    recorder = FlightRecorder(str(tmp_path))
    for keys in (["a"], ["a"], ["a", "b"]):  # has its first gradient
        recorder.begin({**ROW, "loss": []})
        recorder._steps[-1].tensors = Rows(keys, {"h": np.ones(len(keys))})
    recorder.write("alarm", "why")
    kept = load_event(tmp_path, step=50).first
    assert kept.tensor_names.tolist() == ["a", "b"]
    np.testing.assert_array_equal(kept.h[:, 1], [np.nan, np.nan, 1])
    left = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert left == [
        *(f"{step:08}-alarm.rank0.npz" for step in range(NUM_KEPT - 1)),
        "00000050-alarm.rank0.npz",
        "00000099-alarm.rank1.npz",
    ]


WRONG = {
    "h": np.zeros((3, 2), np.float32),
    "step": np.zeros((), np.int64),
    "samples": np.zeros((3, 2), np.float64),
    "reason": np.array([1.0]),
    "norm": np.zeros(2**26, np.float32),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_a_flight_is_refused_by_name(name, tmp_path):
    wrong = dataclasses.replace(flight(["a"], [1.0]), **{name: WRONG[name]})
    path = event_path(tmp_path, 1, "alarm", 0)
    wrong.save(path)
    with pytest.raises(ValueError, match=f"{path} is damaged: .*") as refused:
        load_event(tmp_path)
    is_large = name == "norm"
    assert ("above 268,435,456" if is_large else name) in str(refused.value)


def test_a_cut_file_is_named_and_a_run_that_is_gone_not_made_again(tmp_path):
    save(tmp_path, 1, 0, age=0)
    (path,) = (tmp_path / FOLDER).iterdir()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"rank0\.npz is damaged"):
        load_event(tmp_path)
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "run", 1, 0, age=0)
    assert not (tmp_path / "run").exists()
