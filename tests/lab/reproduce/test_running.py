# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Running cells: stopped, failed, in pieces."""

import json
import os
import signal
import sys
import threading

import pytest
from lab.reproduce.conftest import planned

from paddle_adagc.lab.record.files import update_run_json
from paddle_adagc.lab.reproduce import running
from paddle_adagc.lab.reproduce.running import run_all, run_process


@pytest.fixture
def cells(write_grid):
    """The cells of a tiny grid."""
    return planned(write_grid())


@pytest.mark.slow
def test_run_that_fails_is_reported_with_its_log(write_grid):
    model = {"vocab_size": 100}
    cells = planned(write_grid("grid.yaml", {"changes": {"model": model}}))
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
