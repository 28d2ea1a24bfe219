# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The run that is put to the test, and what became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.record.files import RunRecord

NUM_STEPS = 12
SAVE_EVERY = 4
_TIMES = ("step_seconds", "clip_seconds")
_LOGGED = (
    "clipped_fraction",
    "global_grad_norm",
    "nonfinite",
    "nonfinite_total",
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """One test: what was done to a run, and how its command then ended."""

    kind: str
    """One of :data:`KINDS`."""

    case: str
    """What was done."""

    outcome: str
    """One of :data:`OUTCOMES`."""

    message: str = ""
    """What the command said of it."""

    count: int = 1
    """Number of trials that this one stands for."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Numbers of a cell of the numerical matrix."""


KINDS = {
    "kills": "SIGKILL, SIGTERM or SIGINT at a random moment",
    "power": "Power loss at a random moment",
    "damage": "One file of a run or of its data damaged",
    "storage": "Disk full, disk read-only, folder removed",
    "inputs": "Corrupt input",
}
"""What the trials do."""

OUTCOMES = {
    "resumed": "ended with the record of an uninterrupted run, bit for bit",
    "fell back": "the same, after the command named the damage",
    "refused": "the command named the damage and left the run as it is",
    "refused or read": "no fault of a reader (corrupt input)",
    "silent": "another record, and no word about it",
    "traceback": "an exception",
}
"""How a trial can end."""

LOST = ("silent", "traceback")
"""Outcomes that must not occur."""


def values(directory: Path, prefix: Path, **train: Any) -> dict[str, Any]:
    """Return the config of a run of a second, on memory-mapped data."""
    return {
        "model": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "data": {
            "kind": "mmap",
            "prefix": str(prefix),
            "seq_length": 16,
            "validation_size": 4,
        },
        "schedule": {"kind": "constant", "learning_rate": 0.01},
        "clip": {"name": "adagc", "t_start": 5},
        "record": {"tensors": True, "moments": True},
        "train": {
            "output_dir": str(directory),
            "max_steps": NUM_STEPS,
            "save_every": SAVE_EVERY,
            "batch_size": 4,
            "log_every": 3,
            "visualdl": False,
            **train,
        },
    }


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """Write a config file; JSON is YAML."""
    path.write_text(json.dumps(config))
    return path


def prepare_text(folder: Path) -> Path:
    """Make a small dataset with its manifest; return its prefix."""
    from paddle_adagc.lab.data.config import PrepareConfig
    from paddle_adagc.lab.data.prepare import prepare

    text = folder / "text.txt"
    rng = np.random.default_rng(0)
    lines = ["".join(map(chr, rng.integers(97, 123, 60))) for _ in range(200)]
    text.write_text("\n".join(lines) + "\n")
    config = PrepareConfig(
        inputs=(str(text),),
        output=str(folder / "corpus"),
        tokenizer="bytes",
        num_workers=1,
    )
    prepare(config)
    return folder / "corpus"


def command(config_file: Path) -> list[str]:
    """Return the command of a run in a process of its own."""
    module = "paddle_adagc.lab.cli.pretrain"
    return [sys.executable, "-m", module, str(config_file)]


def is_saving(run: Path) -> bool:
    """Tell whether a run is writing a checkpoint."""
    return any(
        not (path / "complete.json").exists()
        for path in run.glob("checkpoint-*")
    )


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command did."""

    status: int | None
    """Exit status; None after an exception."""

    text: str
    """What it printed to stderr and logged, PaddleNLP's log left out."""


Main = Callable[[Sequence[str]], int]
"""``tools/pretrain.py`` as a function: arguments to exit status."""


def run_command(main: Main, config_file: Path, *options: str) -> Answer:
    """Give a run's command in this process."""
    text = io.StringIO()
    with _logged_to(text), contextlib.redirect_stderr(text):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                status = main([str(config_file), *options])
        except Exception:
            return Answer(None, traceback.format_exc())
        finally:
            gc.collect()  # closes the files of a run that did not end
    said = text.getvalue().replace(f"{config_file.parent}/", "")
    return Answer(status, without_bar(said))


@contextlib.contextmanager
def _logged_to(stream: io.StringIO) -> Iterator[None]:
    logger = logging.getLogger("paddle_adagc")
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def without_bar(text: str) -> str:
    lines = text.replace("\r", "\n").splitlines()
    return "\n".join(x for x in lines if x.strip("\x1b[A ") and "%|" not in x)


def judge(
    kind: str, case: str, answer: Answer, directory: Path, whole: RunRecord
) -> Trial:
    """Compare a run with an uninterrupted one.

    Args:
        kind: Of the trial.
        case: What was done to the run.
        answer: How its command then ended.
        directory: The run's.
        whole: Record of the uninterrupted run.
    """
    message = answer.text
    if answer.status is None:
        return Trial(kind, case, "traceback", message)
    if answer.status in (2, 3):
        return Trial(kind, case, "refused" if message else "silent", message)
    try:
        is_same = same_record(RunRecord.load(directory, verify=True), whole)
    except ValueError as error:
        return Trial(kind, case, "refused", str(error))
    if not is_same:
        return Trial(kind, case, "silent", message)
    return Trial(kind, case, "fell back" if message else "resumed", message)


def same_record(one: RunRecord, other: RunRecord) -> bool:
    """Tell whether two runs have the same steps, times left out.

    The clip's summary is compared where both have it: a run that was stopped
    has logged that step, too.
    """
    measured = {*one.metrics, *other.metrics} - {*_TIMES}
    return (
        one.num_steps == other.num_steps
        and one.run.get("status") == other.run.get("status")
        and one.tensor_names == other.tensor_names
        and all(
            _same(one.metrics[k], other.metrics[k], k not in _LOGGED)
            if k in one.metrics and k in other.metrics
            else False
            for k in measured
        )
        and all(
            _same(one.tensors[k], other.tensors[k], True) for k in one.tensors
        )
    )


def _same(one: np.ndarray, other: np.ndarray, everywhere: bool) -> bool:
    if everywhere:
        return np.array_equal(one, other, equal_nan=True)
    known = ~np.isnan(one) & ~np.isnan(other)
    return np.array_equal(one[known], other[known])


@contextlib.contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Interrupt a run in this process when it comes to a step."""
    from unittest import mock

    from paddle_adagc.lab.train.trainer import PretrainTrainer

    training_step = PretrainTrainer.training_step

    def stopping(self: Any, *args: Any, **options: Any) -> Any:
        if self.state.global_step == step:
            raise InterruptedError
        return training_step(self, *args, **options)

    with mock.patch.object(PretrainTrainer, "training_step", stopping):
        yield
