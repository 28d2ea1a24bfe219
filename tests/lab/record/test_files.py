# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The record of a run: append, cut back, read as arrays."""

import contextlib
import json
import multiprocessing

import numpy as np
import pytest
from adagc_lab.record.files import (
    QUANTITIES,
    RunRecord,
    RunWriter,
    lock_run,
    mark_stopped,
    update_run_json,
)

NAMES = ["a", "b"]


def block(value):
    return np.full((len(QUANTITIES), len(NAMES)), value, np.float32)


def write(directory, steps, start_step=0):
    writer = RunWriter(directory, NAMES, start_step)
    for step in steps:
        row = {"step": step, "loss": float(10 - step)}
        if step == 2:
            row["faults"] = [{"kind": "gradient_nan", "tensors": ["a"]}]
        if step == 3:
            row["eval_loss"] = 4.5
        writer.append(row, block(step))
    writer.close()


def test_a_directory_is_held_by_one_and_removed_if_it_stays_empty(tmp_path):
    with lock_run(tmp_path / "run"):
        with (
            pytest.raises(FileExistsError, match=r"another process .*/run:"),
            lock_run(tmp_path / "run"),
        ):
            pass
        with lock_run(tmp_path / "other"):
            (tmp_path / "other/run.json").write_text("{}")
        assert not list((tmp_path / "run").iterdir())
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "other").exists()
    (tmp_path / "old").mkdir()
    with lock_run(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()


def test_a_forked_process_does_not_hold_the_directory(tmp_path):
    forks = multiprocessing.get_context("fork")
    has_begun, may_end = forks.Event(), forks.Event()

    def live():
        has_begun.set()
        may_end.wait(30)

    child = forks.Process(target=live)
    with lock_run(tmp_path):
        child.start()
        assert has_begun.wait(30)
    with lock_run(tmp_path):
        may_end.set()
    child.join()


@pytest.mark.parametrize(
    ("is_locked", "before", "after"),
    [
        (False, "running", "stopped"),
        (False, "finished", "finished"),
        (True, "running", "running"),
    ],
)
def test_only_a_run_that_nothing_runs_is_marked(
    is_locked, before, after, tmp_path
):
    update_run_json(tmp_path, status=before)
    with lock_run(tmp_path) if is_locked else contextlib.nullcontext():
        mark_stopped(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == after


def test_round_trip(tmp_path):
    write(tmp_path, range(4))
    update_run_json(tmp_path, status="running", seed=3)
    update_run_json(tmp_path, status="finished")
    record = RunRecord.load(tmp_path)
    assert record.num_steps == 4
    np.testing.assert_array_equal(record.loss, [10.0, 9.0, 8.0, 7.0])
    np.testing.assert_array_equal(
        record.metrics["eval_loss"], [np.nan, np.nan, np.nan, 4.5]
    )
    assert record.faults == {2: [{"kind": "gradient_nan", "tensors": ["a"]}]}
    np.testing.assert_array_equal(record.tensors["norm"][:, 1], range(4))
    assert record.run == {"status": "finished", "seed": 3}


def test_resuming_cuts_back_and_leaves_the_files_of_an_unbroken_run(tmp_path):
    write(tmp_path / "whole", range(6))
    write(tmp_path / "broken", range(5))
    write(tmp_path / "broken", range(3, 6), start_step=3)
    for name in ("metrics.jsonl", "tensors.f32"):
        assert (tmp_path / "broken" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


@pytest.mark.parametrize("line", ["[]", '{"step": 2}', "[" * 100_000, "{"])
def test_a_damaged_line_is_named(tmp_path, line):
    write(tmp_path, range(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match="line 2: damaged"):
        RunRecord.load(tmp_path)


def test_half_written_last_step_is_left_out(tmp_path):
    write(tmp_path, range(3))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert RunRecord.load(tmp_path).num_steps == 3
    with (tmp_path / "tensors.f32").open("ab") as file:
        file.truncate(2 * block(0).nbytes + 3)
    assert RunRecord.load(tmp_path).num_steps == 2


def test_resuming_beyond_the_record_or_with_other_tensors_is_refused(tmp_path):
    write(tmp_path, range(3))
    with pytest.raises(ValueError, match="holds 3 steps, fewer than the 5"):
        RunWriter(tmp_path, NAMES, 5)
    with pytest.raises(ValueError, match="other tensors"):
        RunWriter(tmp_path, ["a", "c"], 2)
    assert json.loads((tmp_path / "tensors.json").read_text()) == NAMES
    assert RunRecord.load(tmp_path).num_steps == 3


def test_scale_of_zero_and_non_finite_norms(tmp_path):
    writer = RunWriter(tmp_path, ["zero", "lost", "kept", "half"])
    rows = np.zeros((len(QUANTITIES), 4), np.float32)
    rows[0] = [0.0, np.nan, np.inf, 2.0]
    rows[1] = [0.0, 0.0, np.inf, 1.0]
    writer.append({"step": 0, "loss": 1.0}, rows)
    writer.close()
    np.testing.assert_array_equal(
        RunRecord.load(tmp_path).h, [[1.0, 0.0, np.nan, 0.5]]
    )
