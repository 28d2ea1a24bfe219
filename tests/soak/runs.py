# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The run that is put to the test, and what became of it."""

import contextlib
import gc
import io
import json
import traceback
from typing import NamedTuple
from unittest import mock

import numpy as np
from lab.train.runs import make_values
from pages import load_tool
from soak.trials import Trial

from paddle_adagc.lab.data.config import PrepareConfig
from paddle_adagc.lab.data.prepare import prepare
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.trainer import PretrainTrainer

_TIMES = {"step_seconds", "clip_seconds"}
_LOGGED = {"clipped_fraction", "global_grad_norm"}
_LOGGED |= {"nonfinite", "nonfinite_total"}
"""Compared where both runs have them: a run that was stopped has logged that
step, too."""


class Answer(NamedTuple):
    """A command's exit status (None: an exception), and what it said."""

    status: int | None
    text: str


def prepare_text(folder):
    """Make a small dataset with its manifest; return its prefix."""
    folder.mkdir(exist_ok=True)
    text = folder / "text.txt"
    rng = np.random.default_rng(0)
    lines = ["".join(map(chr, rng.integers(97, 123, 60))) for _ in range(200)]
    text.write_text("\n".join(lines) + "\n")
    return prepare_corpus(text, folder / "corpus")


def prepare_corpus(text, prefix):
    """Make a dataset of bytes; return its prefix."""
    prepare(
        PrepareConfig(
            inputs=(str(text),),
            output=str(prefix),
            tokenizer="bytes",
            num_workers=1,
        )
    )
    return prefix


def write_config(path, directory, prefix, sections=None, **train):
    """Write the config of a run of a second; return its path."""
    values = make_values(directory, **{"save_every": 4, **train})
    values["data"] |= {"kind": "mmap", "prefix": str(prefix)}
    for section, changes in (sections or {}).items():
        values[section] = {**values.get(section, {}), **changes}
    path.write_text(json.dumps(values))
    return path


def run_command(config_file, *options):
    """Give ``tools/pretrain.py``'s command in this process."""
    text = io.StringIO()
    try:
        with (
            contextlib.redirect_stderr(text),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            status = load_tool("pretrain").main([str(config_file), *options])
    except Exception:
        return Answer(None, traceback.format_exc())
    finally:
        gc.collect()  # closes the files of a run that did not end
    said = text.getvalue().replace(f"{config_file.parent}/", "")
    lines = said.replace("\r", "\n").splitlines()
    kept = [x for x in lines if x.strip("\x1b[A ") and "%|" not in x]
    return Answer(status, "\n".join(kept))


def uninterrupted(directory, prefix, **train):
    """The record of a run that nothing happens to."""
    path = directory.with_suffix(".yaml")
    answer = run_command(write_config(path, directory, prefix, **train))
    assert answer == (0, "")
    return RunRecord.load(directory)


@contextlib.contextmanager
def at_step(step, action):
    """Do something when a run in this process comes to a step."""
    training_step = PretrainTrainer.training_step

    def acting(self, *args, **options):
        if self.state.global_step == step:
            action()
        return training_step(self, *args, **options)

    with mock.patch.object(PretrainTrainer, "training_step", acting):
        yield


def interrupt():
    """End a run without giving it a chance to save (``at_step``)."""
    raise InterruptedError


def is_saving(directory):
    """Tell whether a run is writing a checkpoint."""
    return any(
        not (path / "complete.json").exists()
        for path in directory.glob("checkpoint-*")
    )


def judge(kind, case, answer, directory, whole):
    """Compare the record of a run with that of an uninterrupted one."""
    status, text = answer
    outcome = "fell back" if text else "resumed"
    try:
        if status is None:
            outcome = "traceback"
        elif status in (2, 3):
            outcome = "refused" if text else "silent"
        elif not same_record(RunRecord.load(directory, verify=True), whole):
            outcome = "silent"
    except ValueError as error:
        outcome, text = "refused", str(error)
    return Trial(kind, case, outcome, text)


def same_record(one, other):
    """Tell whether two runs have the same steps, times left out."""
    measured = one.metrics.keys() - _TIMES
    return (
        one.num_steps == other.num_steps
        and one.run.get("status") == other.run.get("status")
        and one.tensor_names == other.tensor_names
        and measured == other.metrics.keys() - _TIMES
        and all(_same(k, one.metrics[k], other.metrics[k]) for k in measured)
        and all(_same(k, one.tensors[k], other.tensors[k]) for k in one.tensors)
    )


def _same(name, one, other):
    if name in _LOGGED:
        known = ~np.isnan(one) & ~np.isnan(other)
        one, other = one[known], other[known]
    return np.array_equal(one, other, equal_nan=True)
