# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of a record: bounded, safe to read, one writer."""

import math
import random
import shutil
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from paddle_adagc.watch import read_record
from paddle_adagc.watch.folder import open_folder
from paddle_adagc.watch.store import FILE, QUANTITIES, Store


def rows_of(steps, **more):
    return [{"step": step, "loss": 1.0, **more} for step in steps]


def tables(num_steps, num_tensors, seed=0):
    rng = np.random.default_rng(seed)
    norm = rng.lognormal(size=(num_steps, num_tensors)).astype("float32")
    return {"norm": norm, "gamma": norm / 2, "h": norm * 0 + 0.5}


def fill(folder):
    store = Store(folder)
    store.begin(1, {"clip": "none"})
    store.append(rows_of(range(1, 11)), ["a", "b"], tables(10, 2))
    store.close()


def test_the_end_of_a_process_that_says_nothing_more(tmp_path):
    fill(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("UPDATE sessions SET heard = heard - 3600")
    end = read_record(tmp_path).end
    assert (end["kind"], end["step"]) == ("unknown", 10)
    assert 3600 <= end["seconds_since"] < 3700


def test_nan_and_infinity(tmp_path):
    """They are read where they are names, and where they once were texts."""
    store = Store(tmp_path)
    store.begin(1, {"beta2": math.nan, "list": [math.inf]})
    store.append(
        rows_of([1], bad=math.nan, worse=[-math.inf]),
        alarms=[
            {"step": 1, "kind": "end", "series": "loss", "value": math.inf}
        ],
    )
    store.append(rows_of([2], bad="NaN", worse="-Infinity"))
    store.close()
    run = read_record(tmp_path)
    assert run.rows[0]["worse"] == [-math.inf]
    assert run.column("worse")[1] == -math.inf
    assert np.isnan(run.column("bad")).all()
    assert math.isnan(run.rows[1]["bad"])
    assert run.alarms[0]["value"] == math.inf
    assert math.isnan(run.sessions[0].facts["beta2"])


def test_tensors_that_come_later_are_unknown_before(tmp_path):
    store = Store(tmp_path)
    store.begin(1, {})
    store.append(rows_of([1]), ["a"], tables(1, 1))
    store.append(rows_of([2]), ["b", "a"], tables(1, 2))
    unseen = {name: np.full((1, 2), np.nan, "f4") for name in QUANTITIES}
    store.append(rows_of([3]), ["a", "b"], unseen)
    store.close()
    run = read_record(tmp_path)
    assert (run.keys, run.tensor_steps.tolist()) == (["a", "b"], [1, 2])
    norm = run.tensors("norm")
    assert np.isnan(norm).tolist() == [[False, True], [False, False]]
    assert norm[1].tolist() == tables(1, 2)["norm"][0, ::-1].tolist()
    assert (run.tensors("norm", slice(-1, None)) == norm[1:]).all()


@pytest.mark.parametrize("num_events", [1, 80])
def test_the_size_is_bounded(num_events, tmp_path):
    """Rows away from events are thinned; those of the newest stay whole.

    Also after the file was closed and opened again.
    """
    bound, keys = 10**6, [f"layers.{i}.weight" for i in range(100)]
    size = 200
    exact, last = {}, 16_000
    store = Store(tmp_path, bound)
    store.begin(1, {})
    for first in range(1, last, size):
        if first == 8001:
            store.close()
            store = Store(tmp_path, bound)
            store.begin(first, {})
        is_event = first % (last // num_events) == 1
        event = {"step": first, "kind": "spike", "series": "loss"}
        steps, found = range(first, first + size), tables(size, 100, first)
        store.append(rows_of(steps), keys, found, [event] * is_event)
        exact |= dict(zip(steps, found["norm"], strict=True))
    store.close()
    run = read_record(tmp_path)
    steps = run.tensor_steps
    assert run.tensors("norm").nbytes < bound
    assert (tmp_path / FILE).stat().st_size < 5 * bound
    newest = last - last // num_events + 1
    assert {*range(newest, newest + 30)} <= {*steps.tolist()}
    calm = steps[(steps < last // 2) & (steps % (last // num_events) > 30)]
    assert len(calm) >= 10
    for step, row in zip(steps.tolist(), run.tensors("norm"), strict=True):
        np.testing.assert_array_equal(row, exact[step])


def test_an_append_that_was_refused_can_be_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("paddle_adagc.watch.store._LOCK_SECONDS", 0.1)
    store = Store(tmp_path)
    store.begin(1, {})
    given = rows_of([1]), ["a", "b"], tables(1, 2)
    reader = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM steps").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        store.append(*given)
    reader.close()
    store.append(*given)
    store.close()
    run = read_record(tmp_path)
    assert (run.keys, run.tensors("norm").shape) == (["a", "b"], (1, 2))


WRITER = """
import sys, numpy as np
from paddle_adagc.watch.store import Store
store = Store(sys.argv[1])
store.begin(1, {})
tensors = dict.fromkeys(("norm", "gamma", "h"), np.ones((4, 500), "f4"))
keys = [str(i) for i in range(500)]
for step in range(1, 10**6, 4):
    rows = [{"step": step + i, "loss": 1.0} for i in range(4)]
    store.append(rows, keys, tensors)
    print(step + 3, flush=True)
"""


def reported(process):
    """The last step that a killed writer has reported."""
    process.kill()
    return max(map(int, process.communicate()[0].split()), default=0)


@pytest.mark.parametrize(
    "num", [3, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_a_killed_writer_loses_no_step_that_it_reported(num, tmp_path):
    chance = random.Random(1)
    for i in range(num):
        folder = tmp_path / f"{i}"
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, folder], stdout=subprocess.PIPE
        )
        assert process.stdout.readline()
        # Read meanwhile: the writer does not wait, the copy is whole.
        while chance.random() < 0.6:
            run = read_record(folder)
            assert run.step[-1] == run.tensor_steps[-1]
            assert run.end["kind"] == "running"
        time.sleep(chance.uniform(0, 0.3))
        last = reported(process)
        run = read_record(folder)
        assert run.step.tolist() == [*range(1, len(run.step) + 1)]
        assert len(run.step) >= last
        assert (run.tensors("h") == 1).all()


def test_folders_of_runs_that_start_anew(tmp_path):
    first = tmp_path / "record"
    for name in ("record", "record-2", "record-3"):
        assert open_folder(first, None) == (tmp_path / name, None)
    # Nothing was written there yet.
    assert open_folder(first, 7) == (tmp_path / "record-3", None)
    fill(tmp_path / "record-3")
    folder, past = open_folder(first, 7)
    assert (folder, past.step[-1]) == (tmp_path / "record-3", 10)
    assert open_folder(tmp_path / "new", 7) == (tmp_path / "new", None)


HOSTILE = {
    "a view": "CREATE VIEW v AS WITH RECURSIVE c(x) AS "
    "(SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT * FROM c",
    "a version": "UPDATE info SET value = 99 WHERE name = 'version'",
    "a step": "UPDATE steps SET step = -1 WHERE step = 3",
    "numbers": "UPDATE steps SET numbers = '[1]'",
    "deep": f"UPDATE steps SET numbers = '{'[' * 10**5}'",
    "a key": "UPDATE tensors SET key = x'00' WHERE id = 1",
    "tensors": "UPDATE rows SET content = x'00'",
    "more tensors": "UPDATE rows SET content = zeroblob(36)",
    "a text for tensors": "UPDATE rows SET content = 'abcdefghijkl'",
    "a session": "UPDATE sessions SET start = 'x'",
    "a step twice": "INSERT INTO steps VALUES (7, 3, '{}')",
    "an end": 'UPDATE sessions SET ending = \'{"kind": "\\u001b[2J"}\'',
    "a time": "UPDATE sessions SET heard = 'x'",
    "an alarm": "INSERT INTO alarms VALUES (1, 'x', 'spike', 'loss', '{}')",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_stranger_wrote_is_refused(name, tmp_path):
    fill(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute(HOSTILE[name])
    file.close()
    with pytest.raises(ValueError, match=FILE):
        read_record(tmp_path)


def test_damage_names_the_file(tmp_path):
    fill(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for content in (b"", b"x" * 5000, whole[:5000], whole[:100] + b"\0" * 9999):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(ValueError, match=FILE):
            read_record(tmp_path)
        if content:
            with pytest.raises(ValueError, match=FILE):
                Store(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no record"):
        read_record(tmp_path)
