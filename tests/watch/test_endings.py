# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a run ended is a fact of its record, and nothing reported is lost."""

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from helpers import assert_equal
from watch.training import make_training, train

from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.alarms import run_command

TESTS = Path(__file__).parents[1]
PROGRAM = """
import sys, time
from watch.training import make_training, train
from paddle_adagc.watch import Record
model, optimizer = make_training(None)
record = Record(sys.argv[1], optimizer, model, num_steps=16)
def ends_in(step):
    train(model, optimizer, range(step), record=record)
"""
ENDINGS = {
    "without close": ("ends_in(20)", 0, "finished", ""),
    "no step": ("raise OSError('no data')", 1, "exception", "OSError: no data"),
    "own hook": (
        "sys.excepthook = lambda *_: print('mine'); ends_in(20); 1 / 0",
        1,
        "exception",
        "ZeroDivisionError",
    ),
}


def run_program(code, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code, folder],
        env=environment,
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_run_ended(name, tmp_path):
    code, status, kind, text = ENDINGS[name]
    process = run_program(code, tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors
    end = read_record(tmp_path).end
    assert end["kind"] == kind
    assert text in end["text"]
    assert end["step"] == (None if name == "no step" else 20)
    assert "Traceback" in errors or status != 1 or name == "own hook"


@pytest.mark.slow
@pytest.mark.parametrize(
    "num", [4, pytest.param(40, marks=pytest.mark.long)], ids=str
)
def test_sigterm_once_or_twice_loses_no_step(num, tmp_path):
    """The second comes 4 ms after the first."""
    code = """
for step in range(10**6):
    train(model, optimizer, [step], record=record)
    print(step + 1, flush=True)
"""
    chance = random.Random(2)
    for i in range(num):
        process = run_program(code, tmp_path / f"{i}")
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.3))
        process.terminate()
        if i % 2:
            time.sleep(0.004)
            process.terminate()
        lines, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM, errors
        run = read_record(tmp_path / f"{i}")
        last = max(map(int, lines.split()), default=1)
        assert run.step.tolist() == [*range(1, len(run.step) + 1)]
        assert len(run.step) >= last
        assert (run.end["kind"], run.end["text"]) == ("signal", "SIGTERM")
        assert run.end["step"] == len(run.step)


@pytest.fixture
def small_disk():
    """Let files of this process be 100 KB at most, until it is called."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def free():
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
    yield free
    free()
    signal.signal(signal.SIGXFSZ, before)


def start(folder):
    model, optimizer = make_training(None)
    return model, optimizer, Record(folder, optimizer, model, num_steps=8)


def train_and(model, optimizer, record, steps, then):
    train(model, optimizer, steps, record=record)
    then()


def test_a_full_disk_loses_no_step_if_it_has_room_later(tmp_path, small_disk):
    model, optimizer, record = start(tmp_path)
    with pytest.warns(UserWarning, match="cannot be written") as caught:
        train_and(
            *(model, optimizer, record, range(400)),
            lambda: wait_for(lambda: caught.list),
        )
    run = read_record(tmp_path)
    assert 0 < len(run.step) < 400
    assert run.end["kind"] == "disk"
    with pytest.raises((OSError, sqlite3.Error)):
        record.sync(0.1)
    small_disk()
    mine = train(model, optimizer, range(400, 401), record=record)
    record.sync()
    assert len(read_record(tmp_path).step) == 401
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 402)]
    assert (run.end["kind"], run.end["dropped"]) == ("finished", 0)
    assert_equal(mine, train(*make_training(None), range(401)))


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_disk_that_stays_full_is_said_at_the_end(
    tmp_path, small_disk, monkeypatch
):
    monkeypatch.setattr("paddle_adagc.watch.recorder.CLOSE_SECONDS", 0.5)
    run = start(tmp_path)
    with pytest.warns(UserWarning, match="the record") as caught:
        train_and(*run, range(400), run[-1].close)
    said = [str(w.message) for w in caught]
    assert len(said) == 2
    assert "cannot be written" in said[0]
    missing = 400 - len(read_record(tmp_path).step)
    assert f"lacks {missing} steps" in said[1]


def test_a_folder_that_refuses_the_file_is_left_for_the_local_disk(
    tmp_path, monkeypatch
):
    """Such as on a network disk without locks: here the file is a folder."""
    run = *_, record = start(tmp_path / "a")
    (tmp_path / "a/record.sqlite").unlink()
    (tmp_path / "a/record.sqlite").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match=r"a cannot be written .* goes to"):
        train_and(*run, range(10), record.close)
    assert record.directory.parent == tmp_path
    assert len(read_record(record.directory).step) == 10


def test_a_newer_session_ends_an_older_record(tmp_path):
    model, optimizer, older = start(tmp_path)
    train(model, optimizer, range(16), record=older)
    other = make_training(None)
    newer = Record(tmp_path, other[1], other[0], start=10)
    train(*other, range(10, 12), record=newer)
    newer.flush()
    wait_for(lambda: len(read_record(tmp_path).sessions) == 2)
    with pytest.warns(UserWarning, match="a newer run writes to the record"):
        train_and(model, optimizer, older, range(16, 40), older.close)
    newer.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 13)]
    assert run.sessions[0].end["kind"] == "replaced"


FORKS = """
import multiprocessing
ends_in(10)
fork = multiprocessing.get_context("fork")
children = [fork.Process(target=time.sleep, args=[60]) for _ in range(3)]
for child in children[:2]:
    child.start()
train(model, optimizer, range(10, 70), record=record)
record.flush()
children[2].start()
children[0].terminate()  # its handler and its exit leave the file alone
for _ in range(20):
    fork.Process(target=sys.exit).start()
train(model, optimizer, range(70, 80), record=record)
record.close()
for child in children:
    child.kill()
"""


@pytest.mark.slow
def test_forked_children_leave_the_record_alone(tmp_path):
    process = run_program(FORKS, tmp_path)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 81)]
    assert run.end["kind"] == "finished"


def test_a_command_gets_each_kind_of_alarm_once(tmp_path):
    def ruin(step, loss):
        return loss * (50 if step in (40, 60, 80) else 1)

    lines = tmp_path / "lines"
    model, optimizer = make_training(None)
    record = Record(
        tmp_path / "a", optimizer, model, on_alarm=f"cat >> {lines}"
    )
    train(model, optimizer, range(100), record=record, change=ruin)
    record.close()
    (line,) = lines.read_text().splitlines()
    assert line.startswith("step 41: loss ")
    steps = {a["step"] for a in read_record(tmp_path / "a").alarms}
    assert {41, 61, 81} <= steps


def test_a_command_that_fails_or_hangs_is_ended(monkeypatch):
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with pytest.raises(RuntimeError, match="returned 3"):
        run_command("exec <&-; sleep 0.2; exit 3", "a line" * 100_000)
    signal.signal(signal.SIGPIPE, before)
    monkeypatch.setattr("paddle_adagc.watch.alarms._COMMAND_SECONDS", 0.2)
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match="took longer"):
        run_command("sleep 60 | sleep 60", "a line")
    assert time.monotonic() - begin < 10
