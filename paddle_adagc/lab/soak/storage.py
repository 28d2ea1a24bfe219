# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Storage that fails: a full disk, a read-only disk, a removed folder."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.soak.runs import (
    LOST,
    Answer,
    Main,
    Trial,
    judge,
    prepare_text,
    run_command,
    stopped_at,
    values,
    write_config,
)

_SMALLEST, _LARGEST = 100, 560
"""KiB of a disk on which the run does not end: it needs 600."""


def storage_trials(
    folder: Path, main: Main, count: int, seed: int
) -> Iterator[Trial]:
    """Let a run's storage fail, mend it, and give the same command again.

    A trial is lost unless the first answer is exit status 3 with the path and
    what to do, and the second ends with the uninterrupted run's record. Needs
    the right to mount.

    Args:
        folder: Empty folder to work in.
        main: The command.
        count: Disks of random size that run full.
        seed: Of the sizes.
    """
    prefix = prepare_text(folder)
    file = write_config(folder / "whole.yaml", values(folder / "whole", prefix))
    run_command(main, file)
    whole = RunRecord.load(folder / "whole")
    disk = folder / "disk"
    disk.mkdir()
    run = disk / "run"
    file = write_config(folder / "run.yaml", values(run, prefix))
    rng = np.random.default_rng(seed)
    for size in rng.integers(_SMALLEST, _LARGEST, count):
        with _tmpfs(disk, f"size={size}k"):
            first = run_command(main, file)
            _remount(disk, "size=64m")
            trial = judge(
                "storage",
                f"disk of {size} KiB",
                run_command(main, file),
                run,
                whole,
            )
            yield _with_first(trial, first, "free space")
    with _tmpfs(disk, "size=64m"):
        with stopped_at(10):
            run_command(main, file)
        _remount(disk, "ro")
        first = run_command(main, file)
        _remount(disk, "rw")
        trial = judge(
            "storage", "read-only disk", run_command(main, file), run, whole
        )
        yield _with_first(trial, first, "make it writable")
    with _tmpfs(disk, "size=64m"):
        with _removed_at(6, run):
            first = run_command(main, file)
        shutil.rmtree(run, ignore_errors=True)
        trial = judge(
            "storage", "removed folder", run_command(main, file), run, whole
        )
        yield _with_first(trial, first, "put the folder back")


def _with_first(trial: Trial, first: Answer, advice: str) -> Trial:
    """Take the answer to the failure into account."""
    if first.status is None:
        return dataclasses.replace(
            trial, outcome="traceback", message=first.text
        )
    is_named = "cannot write to" in first.text or "cannot be" in first.text
    if first.status != 3 or advice not in first.text or not is_named:
        text = f"exit status {first.status}: {first.text}"
        return dataclasses.replace(trial, outcome="silent", message=text)
    if trial.outcome in LOST:
        return trial
    return dataclasses.replace(trial, outcome="fell back", message=first.text)


@contextlib.contextmanager
def _tmpfs(folder: Path, options: str) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(
        ["mount", "-o", f"remount,{options}", str(folder)], check=True
    )


@contextlib.contextmanager
def _removed_at(step: int, directory: Path) -> Iterator[None]:
    """Remove a run's directory under it when it comes to a step."""
    from paddle_adagc.lab.train.trainer import PretrainTrainer

    training_step = PretrainTrainer.training_step

    def removing(self: PretrainTrainer, *args: object) -> object:
        if self.state.global_step == step:
            shutil.rmtree(directory)
        return training_step(self, *args)  # type: ignore[arg-type]

    with mock.patch.object(PretrainTrainer, "training_step", removing):
        yield
