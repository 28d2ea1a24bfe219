# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the runs of a grid: in parallel, resumable, with their progress."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import paddle
import pretrain
from omegaconf import OmegaConf
from tqdm import tqdm

import adagc_lab.train.run  # noqa: F401
from adagc_lab.record.files import (
    ENDED,
    num_steps,
    read_run_json,
    update_run_json,
)
from adagc_lab.reproduce.grid import PlannedRun, as_json

_ROOT = Path(__file__).resolve().parents[3]
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 60.0
"""For the checkpoint of a run that is stopped."""


def run_all(runs: Sequence[PlannedRun], num_jobs: int) -> None:
    """Run the runs that have not ended yet, in order, ``num_jobs`` at a time.

    Runs with the same directory are one. A RuntimeError names the log of a run
    that failed.
    """
    once = {run.directory: run for run in runs}
    todo = [run for run in once.values() if not has_ended(run)]
    if not todo:
        return
    tqdm.monitor_interval = 0  # no thread of its own: this process forks
    total = sum(map(_steps_left, todo))
    seconds = 0.1 if sys.stderr.isatty() else 60
    with (
        tqdm(total=total, unit="step", mininterval=seconds) as bar,
        contextlib.closing(_run_each(todo, num_jobs)) as rests,
    ):
        for rest in rests:
            num_ended = len(todo) - len(rest)
            bar.set_postfix_str(f"{num_ended} of {len(todo)} runs", False)
            bar.update(total - sum(map(_steps_left, rest)) - bar.n)


def _run_each(
    runs: Sequence[PlannedRun], num_jobs: int
) -> Generator[list[PlannedRun], None, None]:
    """Yield, twice a second, the runs that have not ended.

    Closing the generator stops the runs; each saves a checkpoint.
    """
    code = commit()  # what all of them run: they are forked from here
    waiting = [*runs]
    active: list[tuple[PlannedRun, BaseProcess]] = []
    try:
        while waiting or active:
            while waiting and len(active) < num_jobs:
                run = waiting.pop(0)
                active.append((run, _start(run)))
            time.sleep(_POLL_SECONDS)
            ended = [pair for pair in active if pair[1].exitcode is not None]
            active = [pair for pair in active if pair not in ended]
            for run, process in ended:
                _add_commit(run, code)
                _refuse_failure(run, process.exitcode)
            yield [*(run for run, _ in active), *waiting]
    finally:
        for _, process in active:
            process.terminate()
        for run, process in active:
            process.join(_GRACE_SECONDS)
            process.kill()
            _add_commit(run, code)


def _start(run: PlannedRun) -> BaseProcess:
    """Start ``tools/pretrain.py`` in a process forked from this one.

    A fork spares the import of Paddle and PaddleNLP, which takes seconds:
    hence ``adagc_lab.train.run`` is imported here. It is not possible where
    this process has asked for GPUs.
    """
    run.directory.parent.mkdir(parents=True, exist_ok=True)
    values = json.loads(json.dumps(run.config.to_dict()))
    OmegaConf.save(OmegaConf.create(values), _beside(run, ".yaml"))
    context: Any = multiprocessing.get_context(
        "spawn" if paddle.is_compiled_with_cuda() else "fork"
    )
    process: BaseProcess = context.Process(
        target=_pretrain, args=(_beside(run, ".yaml"), _beside(run, ".log"))
    )
    process.start()
    return process


def _beside(run: PlannedRun, ending: str) -> Path:
    return run.directory.with_name(run.directory.name + ending)


def _pretrain(config: Path, log: Path) -> None:
    """Run the command in this process, as if it had been typed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # when the parent is killed
    sys.stdout = sys.stderr = log.open("a", buffering=1)
    for number in (1, 2):
        os.dup2(sys.stdout.fileno(), number)
    sys.argv = ["pretrain.py", str(config)]
    pretrain.run()


def _refuse_failure(run: PlannedRun, code: int | None) -> None:
    if code not in (0, 1) or not has_ended(run):
        log = _beside(run, ".log")
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(
            f"run {run.directory} failed (exit status {code}): {last}; see "
            f"{log}"
        )


def _add_commit(run: PlannedRun, code: str | None) -> None:
    """Note which commit a run ran; several if it was resumed by another."""
    if facts := read_run_json(run.directory):
        commits = [*(facts.get("commit") or "").split(", "), code]
        known = ", ".join(dict.fromkeys(filter(None, commits)))
        update_run_json(run.directory, commit=known or None)


def has_ended(run: PlannedRun) -> bool:
    """Whether the run is there, made with the same config."""
    facts = read_run_json(run.directory)
    is_ended = facts.get("status") in ENDED
    return is_ended and facts["config"] == as_json(run.config)


def _steps_left(run: PlannedRun) -> int:
    return run.config.train.max_steps - num_steps(run.directory)


def commit() -> str | None:
    """Commit of this checkout, ``"+changes"`` if files differ; None without."""
    try:
        head, changed = (
            subprocess.run(
                ["git", "-C", str(_ROOT), *arguments],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
            for arguments in (
                ("rev-parse", "--short=12", "HEAD"),
                ("status", "--porcelain", "paddle_adagc", "tools", "configs"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + "+changes" * bool(changed)
