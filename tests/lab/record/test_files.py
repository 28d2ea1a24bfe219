# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: its lock, its facts, its steps; its processor."""

import contextlib
import json
import multiprocessing

import numpy as np
import pytest
from adagc_lab import processor
from adagc_lab.record.files import (
    RunRecord,
    lock_run,
    mark_stopped,
    update_run_json,
)
from lab.train.runs import write_steps

NAMES = ["zero", "lost", "half"]


def rows(steps):
    return [{"loss": float(10 - step)} for step in steps]


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


def test_steps_and_tensors_are_read_as_arrays(tmp_path):
    """The clip's factors are a list of each step: those of the shadow are not.

    A step without a list, as of a fork, has none.
    """
    written = rows(range(3))
    written[2] |= {
        "faults": [{"kind": "gradient_nan", "tensors": ["lost"]}],
        "eval_loss": 4.5,
        "clip_h": [1.0, 0.0, 0.5],
        "moment1": [np.nan, np.inf, 0.25],
    }
    norm = np.array([[0, np.inf, 2]] * 3, np.float32)
    tables = {"norm": norm, "gamma": norm + 1, "h": norm * 0}
    write_steps(
        tmp_path,
        written,
        NAMES[::-1],
        {n: x[:, ::-1] for n, x in tables.items()},
    )
    update_run_json(tmp_path, tensors=NAMES, seed=3)
    record = RunRecord.load(tmp_path)
    assert record.run == {"seed": 3, "tensors": NAMES}
    np.testing.assert_array_equal(record.loss, [10.0, 9.0, 8.0])
    np.testing.assert_array_equal(
        record.metrics["eval_loss"], [np.nan, np.nan, 4.5]
    )
    assert record.faults == {2: written[2]["faults"]}
    for name, expected in {
        "norm": norm[2],
        "gamma": norm[2] + 1,
        "h": [1.0, 0.0, 0.5],
        "clipped_norm": [0.0, np.nan, 1.0],
        "moment1": [np.nan, np.inf, 0.25],
        "moment2": [np.nan] * 3,
    }.items():
        np.testing.assert_array_equal(record.tensors[name][2], expected, name)
    assert np.isnan(record.h[:2]).all()
    assert record.metrics["clipped_fraction"].tolist() == [0.0, 0.0, 1.0]


def test_steps_that_are_missing_are_named(tmp_path):
    write_steps(tmp_path, rows(range(2)), start=1)
    with pytest.raises(ValueError, match="record lacks steps"):
        RunRecord.load(tmp_path)


@pytest.mark.parametrize(
    ("flags", "widest"),
    [("sse avx avx2 avx512f", " (AVX-512)"), ("avx avx2", " (AVX2)"), ("", "")],
)
def test_one_model_with_other_vectors_has_another_name(flags, widest):
    assert processor.with_vectors("EPYC", flags.split()) == "EPYC" + widest
