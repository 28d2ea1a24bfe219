# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The run that is put to the test, and what became of it.

A run is ``tools/pretrain.py``'s command in this process, or on ranks of its
own, which may be killed.
"""

import contextlib
import gc
import io
import json
import multiprocessing
import os
import time
import traceback

import numpy as np
from adagc_lab.record.files import METRICS, RunRecord
from adagc_lab.train.checkpoints import COMPLETE
from indexed import write_indexed_dataset
from lab.train.runs import make_values
from pages import load_tool

REPEAT = int(os.environ.get("SOAK_REPEAT", "1"))
"""How often the long tests repeat their trials."""

_LOGGED = ("nonfinite", "clipped_fraction", "global_grad_norm")
"""A run that was stopped has them of that step, too."""

main = load_tool("pretrain").main
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(["paddlenlp", __name__])  # of run_on_ranks


def prepare_text(folder):
    """Make a small dataset of letters; return its prefix."""
    rng = np.random.default_rng(0)
    lines = [rng.integers(97, 123, 60) for _ in range(200)]
    write_indexed_dataset(folder / "corpus", lines, vocab_size=256)
    return folder / "corpus"


def write_config(path, directory, prefix, sections=None, **train):
    """Write the config of a run of a second; return its path."""
    values = make_values(directory, **{"save_every": 4, **train})
    values["data"] |= {"kind": "mmap", "prefix": str(prefix)}
    for section, changes in (sections or {}).items():
        values[section] = {**values.get(section, {}), **changes}
    path.write_text(json.dumps(values))
    return path


def run_command(config_file, *options):
    """Give the command in this process; its exit status and what it says.

    The status is None after an exception.
    """
    text = io.StringIO()
    try:
        with (
            contextlib.redirect_stderr(text),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            status = main([str(config_file), *options])
    except Exception:
        return None, traceback.format_exc()
    finally:
        gc.collect()  # closes the files of a run that did not end
    return status, text.getvalue().strip()


def uninterrupted(directory, prefix, **train):
    """The record of a run that nothing happens to."""
    path = directory.with_suffix(".yaml")
    answer = run_command(write_config(path, directory, prefix, **train))
    assert answer == (0, "")
    return RunRecord.load(directory)


def wait_for_moment(ranks, directory, num_steps, in_save, rng):
    """Wait until a run has made steps, for a random time; or for its save.

    It ends early when a rank ends.
    """

    def has_come():
        metrics = directory / METRICS
        lines = metrics.read_bytes() if metrics.exists() else b""
        return lines.count(b"\n") >= num_steps

    def is_saving():
        folders = directory.glob("checkpoint-*")
        return any(not (path / COMPLETE).exists() for path in folders)

    for is_so in (has_come, is_saving) if in_save else (has_come,):
        while all(rank.is_alive() for rank in ranks) and not is_so():
            time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.02 if in_save else 0.1))


def command(config_file):
    """Give the command on a rank; gives its exit status."""
    return main([str(config_file)])


def judge(case, answer, directory, whole):
    """Fail if a run lost anything without a word; else say how it ended.

    It ``"resumed"``: the record of an uninterrupted run; ``"fell back"``: the
    same, after a message; or ``"refused"``: a message alone.
    """
    status, text = answer
    assert status is not None, f"{case}: {text}"
    if status in (2, 3):
        assert text, f"{case}: exit status {status}, and no word"
        return "refused"
    try:
        record = RunRecord.load(directory)
    except ValueError:
        return "refused"
    assert is_same(record, whole), f"{case}: another record; {text}"
    return "fell back" if text else "resumed"


def is_same(one, other):
    """Tell whether two runs have the same steps, times left out."""
    for known in ("metrics", "tensors"):
        mine, theirs = getattr(one, known), getattr(other, known)
        if mine.keys() != theirs.keys():
            return False
        for name in mine.keys() - {"step_seconds", "clip_seconds"}:
            a, b = mine[name], theirs[name]
            if name.startswith(_LOGGED):
                is_known = ~np.isnan(a) & ~np.isnan(b)
                a, b = a[is_known], b[is_known]
            if not np.array_equal(a, b, equal_nan=True):
                return False
    names = ("num_steps", "tensor_names")
    return all(getattr(one, name) == getattr(other, name) for name in names)
