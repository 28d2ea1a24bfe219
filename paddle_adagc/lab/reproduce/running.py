# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the runs of a grid: in parallel, resumable, with their progress."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tqdm import tqdm

from paddle_adagc.lab.record.files import update_run_json
from paddle_adagc.lab.reproduce.grid import PlannedRun, as_json

ENDED = ("finished", "diverged")
SECONDS = 15.0
"""Least time between two plain lines of progress."""

Runner = Callable[[PlannedRun, threading.Event], None]
_ROOT = Path(__file__).resolve().parents[3]


def run_all(
    runs: Sequence[PlannedRun], num_jobs: int, runner: Runner | None = None
) -> None:
    """Run the runs that have not ended yet, in order.

    Runs with the same directory are one.

    Args:
        runs: The first ones are begun first.
        num_jobs: Runs at a time.
        runner: Runs one until an event is set; by default in a process of
            its own.

    Raises:
        RuntimeError: A run failed; its log is named.
    """
    once = {run.directory: run for run in runs}
    todo = [run for run in once.values() if not has_ended(run)]
    if not todo:
        return
    stop = threading.Event()
    with (
        concurrent.futures.ThreadPoolExecutor(num_jobs) as pool,
        contextlib.closing(Progress(len(todo), num_jobs)) as progress,
    ):
        try:
            futures = {
                pool.submit(runner or run_process, run, stop): run
                for run in todo
            }
            pending = {*futures}
            while pending:
                done, pending = concurrent.futures.wait(
                    pending, 1.0, concurrent.futures.FIRST_EXCEPTION
                )
                for future in done:
                    future.result()
                progress.show(*_steps_so_far(futures, pending))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _steps_so_far(
    futures: dict[concurrent.futures.Future[None], PlannedRun],
    pending: set[concurrent.futures.Future[None]],
) -> tuple[int, int, int]:
    """Return steps made, steps of all runs, runs that have ended."""
    num_steps = total = 0
    for future, run in futures.items():
        length = run.config.train.max_steps
        total += length
        if future not in pending:
            num_steps += length
        elif future.running():
            num_steps += _num_steps(run.directory)
    return num_steps, total, len(futures) - len(pending)


def _num_steps(directory: Path) -> int:
    """Return steps that a run has logged."""
    metrics = directory / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


class Progress:
    """Shows steps: a bar on a terminal, else a plain line now and then.

    Args:
        num_runs: Runs to make.
        num_jobs: Runs at a time.
        clock: Seconds.
    """

    def __init__(
        self,
        num_runs: int,
        num_jobs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_runs, self._clock = num_runs, clock
        self._started = self._said = clock()
        self._first: int | None = None
        self._bar: tqdm | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(unit="step", smoothing=0.05)
        else:
            self._say(f"{num_runs} runs, {num_jobs} at a time")

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()

    def show(self, num_steps: int, total: int, num_ended: int) -> None:
        """Show the steps made, also before this command, of all runs' steps."""
        if self._bar is not None:
            self._bar.total, self._bar.n = total, num_steps
            self._bar.set_postfix_str(f"{num_ended} of {self._num_runs} runs")
            return
        now = self._clock()
        if self._first is None:
            self._first = num_steps
        if now - self._said < SECONDS:
            return
        self._said = now
        taken = now - self._started
        line = (
            f"{tqdm.format_interval(taken)}  {num_steps:,} of {total:,} steps, "
            f"{num_ended} of {self._num_runs} runs done"
        )
        if num_steps > self._first:
            left = taken / (num_steps - self._first) * (total - num_steps)
            line += f", about {tqdm.format_interval(left)} left"
        self._say(line)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def run_process(run: PlannedRun, stop: threading.Event) -> None:
    """Run a run by ``tools/pretrain.py``.

    Under a constant schedule it continues a shorter run of the same config.
    Its ``run.json`` then also has the ``commit`` (several if the run was
    resumed under another) and ``elapsed_seconds``, the time of its processes.

    Raises:
        RuntimeError: The run failed; its log is named.
    """
    directory = run.directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    continue_shorter(run)
    config_file = directory.with_name(directory.name + ".yaml")
    values = json.loads(json.dumps(run.config.to_dict()))
    OmegaConf.save(OmegaConf.create(values), config_file)
    log_file = directory.with_name(directory.name + ".log")
    command = [sys.executable, f"{_ROOT}/tools/pretrain.py", str(config_file)]
    begin, code_commit = time.monotonic(), commit()
    with log_file.open("ab") as log:
        code = run_until(command, stop, stdout=log)
    _add_facts(directory, code_commit, time.monotonic() - begin)
    if code is None:
        return
    if code not in (0, 1) or not has_ended(run):
        tail = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(
            f"run {directory} failed (exit status {code}): "
            f"{' '.join(tail)}; see {log_file}"
        )


def _add_facts(directory: Path, code: str | None, seconds: float) -> None:
    """Add to a run, in pieces perhaps, what its process took and ran."""
    run_file = directory / "run.json"
    if not run_file.exists():
        return
    run = json.loads(run_file.read_text())
    commits = [*(run.get("commit") or "").split(", "), code]
    update_run_json(
        directory,
        commit=", ".join(dict.fromkeys(filter(None, commits))) or None,
        elapsed_seconds=run.get("elapsed_seconds", 0.0) + seconds,
    )


def run_until(
    command: Sequence[str], stop: threading.Event, **options: Any
) -> int | None:
    """Run a command on one thread; its exit status, None if it was stopped.

    It is terminated once ``stop`` is set.
    """
    process = subprocess.Popen(
        command,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )
    try:
        while not stop.is_set():
            try:
                return process.wait(1.0)
            except subprocess.TimeoutExpired:
                continue
        return None
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def has_ended(run: PlannedRun) -> bool:
    """Whether the run is there, made with the same config."""
    run_file = run.directory / "run.json"
    if not run_file.exists():
        return False
    its = json.loads(run_file.read_text())
    return its.get("status") in ENDED and its["config"] == as_json(run.config)


def commit() -> str | None:
    """Commit of the checkout that this package is in.

    ``"+changes"`` follows if files of the package or its configs differ from
    it. None without git or a checkout.
    """
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "paddle_adagc", "configs")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + "+changes" * bool(changed)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(_ROOT), *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def continue_shorter(run: PlannedRun) -> Path | None:
    """Give a run that has not begun the longest run that it would repeat.

    Under a constant schedule a longer run continues a shorter one: a finished
    run in the same store whose config differs in ``train.max_steps`` alone.
    Its directory is copied; the run's process then resumes from its last
    checkpoint.

    Returns:
        The directory of the shorter run; None without one, or where the
        schedule is not constant or the run has begun.
    """
    config = as_json(run.config)
    if config["schedule"]["kind"] != "constant" or run.directory.exists():
        return None
    shorter = {
        its["config"]["train"]["max_steps"]: path.parent
        for path in run.directory.parent.glob("*/run.json")
        if _is_shorter(its := json.loads(path.read_text()), config)
        and any(path.parent.glob("checkpoint-*"))
    }
    if not shorter:
        return None
    source = shorter[max(shorter)]
    copying = run.directory.with_name(f".{run.directory.name}.tmp")
    shutil.rmtree(copying, ignore_errors=True)
    shutil.copytree(source, copying)
    update_run_json(copying, config=config, status="running")
    copying.rename(run.directory)
    return source


def _is_shorter(run: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a finished run differs from a config in being shorter alone."""
    earlier, train = run.get("config", {}), config["train"]
    if run.get("status") != "finished" or "train" not in earlier:
        return False
    if earlier["train"]["max_steps"] >= train["max_steps"]:
        return False
    length = {"max_steps": train["max_steps"]}
    return {**earlier, "train": {**earlier["train"], **length}} == config
