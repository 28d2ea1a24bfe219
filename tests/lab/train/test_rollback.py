# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rollbacks: to a checkpoint before an event, without its samples."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks
from helpers import slow_but
from lab.train.interruption import interrupted_at
from lab.train.runs import assert_same, make_values, run
from lab.train.test_stopping import start

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train import rollback
from paddle_adagc.lab.train.ending import describe_ending
from paddle_adagc.lab.train.fork import Fork
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.recorder import StepRecorder
from paddle_adagc.lab.train.rollback import (
    read_rollbacks,
)
from paddle_adagc.lab.train.run import run_pretraining
from paddle_adagc.lab.train.skips import Skips
from paddle_adagc.lab.train.stopping import Stopped, StopRequest

ROOT = Path(__file__).parents[3]


def bad_at(directory, *batches, **train):
    """A run whose gradients are NaN in some batches, and which reacts."""
    values = make_values(directory, **{"save_every": 2, **train})
    values["faults"] = [{"kind": "gradient_nan", "steps": [*batches]}]
    values["monitor"] = {"rollback_on": ["nonfinite"], "skip_before": 1}
    return values


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_batches_that_a_step_draws():
    skips = Skips([], 4)
    assert (skips.num_batches, skips.batch(5), skips.sample(22)) == (0, 5, 22)
    skips = Skips([(20, 28), (8, 12)], 4)
    assert [skips.batch(step) for step in range(7)] == [0, 1, 3, 4, 7, 8, 9]
    assert skips.num_batches == 3
    assert [skips.sample(i) for i in (7, 8, 11, 16)] == [7, 12, 15, 28]
    overlapping = Skips([(8, 20), (12, 16), (20, 24)], 4)
    assert overlapping.batch(2) == 6
    other_size = Skips([(20, 28)], 8)
    assert [other_size.batch(step) for step in range(4)] == [0, 1, 4, 5]


def test_a_run_skips_what_raised_the_alarm(tmp_path, capsys):
    values = bad_at(tmp_path, 7)
    status, record = run(values)
    assert status == "finished"
    assert record.metrics["step"].tolist() == [*range(12)]
    rows = rows_of(tmp_path / "metrics.jsonl")
    batches = [row["samples"][0] // 4 for row in rows]
    assert batches == [0, 1, 2, 3, 4, 5, *range(8, 14)]
    assert all(row["samples"][1] == row["samples"][0] + 4 for row in rows)
    [done] = read_rollbacks(tmp_path)
    assert (done.steps, done.checkpoint, done.samples) == (8, 6, (24, 32))
    assert (done.alarm["series"], done.alarm["start"]) == ("nonfinite", 7)
    undone = rows_of(tmp_path / "rollback-1.jsonl")
    assert [row["step"] for row in undone] == [6, 7]
    assert undone[1]["alarms"][0]["series"] == "nonfinite"
    assert record.run["alarms"] == []
    assert "rolled back from step 8 to 6" in capsys.readouterr().out
    lines = describe_ending(tmp_path).lines
    assert f"rollbacks: 1; the last: {done}" in lines


@pytest.mark.slow
def test_is_the_run_that_never_saw_the_samples(tmp_path):
    """A run with the list from the start draws the same from there on."""
    _, rolled = run(bad_at(tmp_path / "rolled", 7))
    values = bad_at(tmp_path / "whole", 7)
    with mock.patch(
        "paddle_adagc.lab.train.run.read_rollbacks",
        return_value=read_rollbacks(tmp_path / "rolled"),
    ):
        _, whole = run(values)
    assert_same(rolled, whole)
    assert read_rollbacks(tmp_path / "whole") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed_in",
    slow_but(
        "remove_checkpoint",
        ["atomic_write", "atomic_write_json", "remove_checkpoint"],
    ),
)
def test_killed_in_a_rollback_it_ends_the_same(killed_in, tmp_path):
    _, whole = run(bad_at(tmp_path / "whole", 7, save_every=1))
    values = bad_at(tmp_path / "cut", 7, save_every=1)
    with (
        mock.patch.object(rollback, killed_in, side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run(values)
    num_done = len(read_rollbacks(tmp_path / "cut"))
    assert num_done == (killed_in == "remove_checkpoint")
    assert (tmp_path / "cut/checkpoint-7").exists()
    status, cut = run(values)
    assert status == "finished"
    assert_same(whole, cut)
    assert read_rollbacks(tmp_path / "cut") == read_rollbacks(
        tmp_path / "whole"
    )


@pytest.mark.slow
def test_killed_after_a_rollback_it_ends_the_same(tmp_path):
    _, whole = run(bad_at(tmp_path / "whole", 7))
    values = bad_at(tmp_path / "cut", 7)
    with interrupted_at(9):
        run(values)
    assert len(read_rollbacks(tmp_path / "cut")) == 1
    _, cut = run(values)
    assert_same(whole, cut)
    assert whole.run["alarms"] == cut.run["alarms"]


@pytest.mark.slow
def test_a_signal_at_the_alarm_ends_the_rolled_back_run(tmp_path):
    _, whole = run(bad_at(tmp_path / "whole", 7))
    values = bad_at(tmp_path / "cut", 7)
    at_alarm = mock.patch.object(
        StopRequest, "agreed", lambda _, step: signal.SIGTERM * (step == 8)
    )
    with at_alarm, pytest.raises(Stopped, match="checkpoint-6; the same"):
        run(values)
    assert len(read_rollbacks(tmp_path / "cut")) == 1
    _, cut = run(values)
    assert_same(whole, cut)


@pytest.mark.slow
def test_ends_after_so_many_rollbacks(tmp_path, capsys):
    values = bad_at(tmp_path, 5, 7, 9)
    values["monitor"] |= {"skip_before": 0, "max_rollbacks": 2}
    status, record = run(values)
    assert status == record.run["status"] == "stopped"
    assert record.run["stopped_by"].startswith("nonfinite 1 ")
    assert len(read_rollbacks(tmp_path)) == 2
    assert "no rollback after 2 (monitor" in capsys.readouterr().out
    assert not describe_ending(tmp_path).is_sound
    values["monitor"] |= {"max_rollbacks": 3}
    status, record = run(values)
    assert status == "finished"
    assert record.metrics["step"].tolist() == [*range(12)]
    assert record.metrics["nonfinite"].sum() == 0


@pytest.mark.slow
def test_without_a_checkpoint_before_the_event_it_ends(tmp_path, capsys):
    status, record = run(bad_at(tmp_path, 1))
    assert (status, record.num_steps) == ("stopped", 2)
    assert "no checkpoint before the event" in capsys.readouterr().out


@pytest.mark.slow
def test_a_diverged_run_is_rolled_back_by_hand(tmp_path):
    values = make_values(tmp_path, save_every=2)
    values["faults"] = [{"kind": "gradient_nan", "steps": [7]}]
    values["clip"] = {"name": "global_norm"}
    status, record = run(values)
    assert status == "diverged"
    with pytest.raises(ValueError, match="diverged nor was stopped"):
        run_pretraining(
            parse_config(make_values(tmp_path / "no")), rollback=True
        )
    status = run_pretraining(parse_config(values), rollback=True)
    assert status == "finished"
    record = RunRecord.load(tmp_path)
    assert np.isfinite(record.loss).all()
    [done] = read_rollbacks(tmp_path)
    assert (done.checkpoint, done.alarm["series"]) == (6, "loss")


@pytest.mark.slow
def test_a_fork_skips_the_same_samples(tmp_path):
    run(bad_at(tmp_path / "run", 7))
    values = bad_at(tmp_path / "fork", 7)
    run_pretraining(parse_config(values), fork=Fork(tmp_path / "run", 10))
    rows = [rows_of(tmp_path / n / "metrics.jsonl") for n in ("run", "fork")]
    assert [x["samples"] for x in rows[0]] == [x["samples"] for x in rows[1]]
    assert read_rollbacks(tmp_path / "fork")


@pytest.mark.slow
def test_a_fork_goes_back_to_its_origin(tmp_path):
    run(bad_at(tmp_path / "run", 2, save_every=1, keep_checkpoints=12))
    values = bad_at(tmp_path / "fork", 9, save_every=12)
    origin = Fork(tmp_path / "run", 6)
    assert run_pretraining(parse_config(values), fork=origin) == "finished"
    rows = rows_of(tmp_path / "fork/metrics.jsonl")
    assert [row["step"] for row in rows] == [*range(12)]
    first, second = read_rollbacks(tmp_path / "fork")
    assert [first] == read_rollbacks(tmp_path / "run")
    assert (second.alarm["start"], second.checkpoint) == (7, 6)
    start, stop = second.samples
    assert not any(start <= row["samples"][0] < stop for row in rows)
    assert (tmp_path / "fork/rollback-2.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["too late", "damaged"])
def test_a_fork_without_a_good_origin_ends(case, tmp_path):
    run(make_values(tmp_path / "run", save_every=2, keep_checkpoints=6))
    values = bad_at(tmp_path / "fork", 6, save_every=12)
    step = {"too late": 6, "damaged": 4}[case]

    def damaged(checkpoint, **options):
        return "lost" if checkpoint.parent.name == "run" else None

    with mock.patch.object(
        rollback,
        "find_checkpoint_fault",
        damaged if case == "damaged" else rollback.find_checkpoint_fault,
    ):
        status = run_pretraining(
            parse_config(values), fork=Fork(tmp_path / "run", step)
        )
    assert status == "stopped"
    assert read_rollbacks(tmp_path / "fork") == []


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{}", b'{"rollbacks": []}', None]
)
def test_a_damaged_or_lost_list_is_refused(damage, tmp_path):
    values = bad_at(tmp_path, 7, max_steps=10)
    run(values)
    path = tmp_path / "skipped.json"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    values["train"]["max_steps"] = 12
    with pytest.raises(ValueError, match=r"skipped.json (is damaged|has 0)"):
        run(values)


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    values = bad_at(tmp_path, 7)
    values["monitor"]["stop_on"] = ["nonfinite"]
    with pytest.raises(ValueError, match="both name nonfinite"):
        parse_config(values)
    values = bad_at(tmp_path, 7, save_every=0)
    with pytest.raises(ValueError, match=r"set train\.save_every"):
        parse_config(values)


@pytest.mark.slow
def test_the_command_rolls_back_and_goes_on(tmp_path):
    values = bad_at(tmp_path / "run", 40, max_steps=60, save_every=10)
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(values))
    command = [sys.executable, str(ROOT / "tools/pretrain.py"), str(config)]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rolled back from step" in ended.stdout
    assert "rollbacks: 1; the last: nonfinite 1 " in ended.stdout
    assert RunRecord.load(tmp_path / "run").num_steps == 60


@pytest.mark.slow
def test_a_command_killed_in_a_rollback_resumes_the_same(tmp_path):
    def values_in(name):
        train = {"max_steps": 60, "save_every": 5, "log_every": 1}
        values = bad_at(tmp_path / name, 31, **train)
        values["monitor"]["skip_before"] = 4
        return values

    _, whole = run(values_in("whole"))
    process = start(values_in("cut"), tmp_path)
    while not (tmp_path / "cut/skipped.json").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert RunRecord.load(tmp_path / "cut").run["status"] == "running"
    _, cut = run(values_in("cut"))
    assert_same(whole, cut)
    assert len(read_rollbacks(tmp_path / "cut")) == 1


@contextlib.contextmanager
def nan_losses_in_batch(number):
    add_loss = StepRecorder.add_loss

    def broken(self, loss):
        is_bad = self._row["samples"][0] == number * 8
        add_loss(self, loss * math.nan if is_bad else loss)

    with mock.patch.object(StepRecorder, "add_loss", broken):
        yield


def run_on_rank(values):
    with nan_losses_in_batch(7):
        return run_pretraining(parse_config(values))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [{"dp": 2}, {"tp": 2}])
def test_a_layout_rolls_back_as_one_process_does(parallel, tmp_path):
    def values_in(name, size, parallel):
        values = make_values(tmp_path / name, batch_size=size, save_every=2)
        values["monitor"] = {"rollback_on": ["loss"], "skip_before": 1}
        return values | {"record": {}, "parallel": parallel}

    with nan_losses_in_batch(7):
        _, one = run(values_in("one", 8, {}))
    values = values_in("two", 4 if "dp" in parallel else 8, parallel)
    assert run_on_ranks(run_on_rank, 2, values=values) == ["finished"] * 2
    assert len(read_rollbacks(tmp_path / "two")) == 1
    two = RunRecord.load(tmp_path / "two")
    np.testing.assert_allclose(two.loss, one.loss, rtol=1e-5)
    rows = [rows_of(tmp_path / n / "metrics.jsonl") for n in ("one", "two")]
    assert [x["samples"] for x in rows[0]] == [x["samples"] for x in rows[1]]
