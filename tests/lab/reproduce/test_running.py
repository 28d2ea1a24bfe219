# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Running cells: stopped, failed, continued, and their progress."""

import dataclasses
import json
import os
import signal
import sys
import threading

import numpy as np
import pytest

from paddle_adagc.lab.record.files import RunRecord, update_run_json
from paddle_adagc.lab.reproduce import running
from paddle_adagc.lab.reproduce.grid import (
    as_json,
    in_store,
    load_target,
    make_runs,
)
from paddle_adagc.lab.reproduce.running import (
    continue_shorter,
    run_all,
    run_process,
)

CONSTANT = {"schedule": {"kind": "constant"}, "train": {"save_every": 4}}


@pytest.fixture
def cells(write_grid, tmp_path):
    """The cells of a tiny grid."""
    path = write_grid()
    (experiment,) = load_target(path).experiments
    return make_runs(experiment, path, tmp_path / "cells")


@pytest.mark.slow
def test_run_that_fails_is_reported_with_its_log(write_grid, tmp_path):
    path = write_grid("grid.yaml", {"changes": {"model": {"vocab_size": 100}}})
    (experiment,) = load_target(path).experiments
    cells = make_runs(experiment, path, tmp_path)
    with pytest.raises(RuntimeError, match=r"vocab_size=100.*\.log"):
        run_all(cells[:1], 1)


def test_running_cell_is_stopped(cells):
    cell = cells[0]
    stop = threading.Event()
    stop.set()
    run_process(cell, stop)
    assert not (cell.directory / "run.json").exists()


def test_runs_are_stopped_with_the_command(cells):
    stopped = []

    def run(cell, stop):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        stop.wait()
        stopped.append(cell)

    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            run_all(cells, 1, run)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert stopped == cells[:1]


def test_pieces_of_a_run_add_up(cells, monkeypatch):
    cell = cells[0]
    commits = iter(["one", "two", "two"])
    seconds = iter([0.0, 5.0, 10.0, 12.0, 20.0, 21.0])
    monkeypatch.setattr(running, "commit", lambda: next(commits))
    monkeypatch.setattr(running, "run_until", lambda *_, **__: None)
    monkeypatch.setattr(running.time, "monotonic", lambda: next(seconds))
    update_run_json(cell.directory, status="running")
    for _ in range(3):
        run_process(cell, threading.Event())
    run = json.loads((cell.directory / "run.json").read_text())
    assert (run["commit"], run["elapsed_seconds"]) == ("one, two", 8.0)


@pytest.fixture
def cell_of(write_grid, tmp_path):
    """``cell_of(steps, store)``: the same run with another length."""
    path = write_grid("grid.yaml", {"changes": CONSTANT})

    def make(steps, store="cells", **changes):
        first = make_runs(load_target(path).experiments[0], path, tmp_path)[0]
        train = dataclasses.replace(first.config.train, max_steps=steps)
        config = dataclasses.replace(first.config, train=train, **changes)
        config = in_store(config, tmp_path / store)
        return dataclasses.replace(first, config=config)

    return make


def finished(cell, checkpoint=True, status="finished"):
    update_run_json(cell.directory, config=as_json(cell.config), status=status)
    if checkpoint:
        (cell.directory / "checkpoint-4").mkdir()
    return cell


def test_the_longest_shorter_run_is_continued(cell_of):
    finished(cell_of(8))
    longest = finished(cell_of(12))
    finished(cell_of(30))
    cell = cell_of(20)
    assert continue_shorter(cell) == longest.directory
    assert (cell.directory / "checkpoint-4").is_dir()
    assert continue_shorter(cell) is None


@pytest.mark.parametrize(
    "fields", [{"checkpoint": False}, {"status": "diverged"}]
)
def test_what_cannot_be_resumed_is_not(cell_of, fields):
    finished(cell_of(8), **fields)
    assert continue_shorter(cell_of(20)) is None


def test_other_schedules_and_configs_start_anew(cell_of):
    first = cell_of(8)
    schedule = dataclasses.replace(first.config.schedule, kind="cosine")
    finished(cell_of(8, schedule=schedule))
    assert continue_shorter(cell_of(20, schedule=schedule)) is None
    assert continue_shorter(cell_of(20)) is None


@pytest.mark.slow
@pytest.mark.long
def test_a_continued_run_is_the_run_in_one_piece(cell_of):
    run_process(cell_of(8), threading.Event())
    continued, whole = cell_of(14), cell_of(14, "elsewhere")
    run_process(continued, threading.Event())
    run_process(whole, threading.Event())
    first, second = (RunRecord.load(c.directory) for c in (continued, whole))
    assert first.run["status"] == second.run["status"] == "finished"
    assert first.num_steps == second.num_steps == 14
    np.testing.assert_array_equal(first.loss, second.loss)
    np.testing.assert_array_equal(first.h, second.h)
