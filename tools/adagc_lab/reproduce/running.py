# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the runs of a grid: in parallel, resumable, with their progress.

Each run is a separate process, forked from one that has imported Paddle and
PaddleNLP, which takes seconds.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from omegaconf import OmegaConf
from tqdm import tqdm

from adagc_lab.record.files import (
    ENDED,
    RunRecord,
    num_steps,
    update_run_json,
)
from adagc_lab.reproduce.grid import PlannedRun, as_json

_ROOT = Path(__file__).resolve().parents[3]
_PRELOADED = ["pretrain", "adagc_lab.train.run", "adagc_lab.train.console"]
LEAST_SHOWN = 100
"""Shorter runs end before their losses would be read."""

_POLL_SECONDS = 0.2
_GRACE_SECONDS = 60.0
"""For the checkpoint of a run that is stopped."""

_MULTIPROCESSING = threading.RLock()
"""Every start and poll reads the exit statuses of all processes."""


def run_all(runs: Sequence[PlannedRun], num_jobs: int) -> None:
    """Run the runs that have not ended yet, in order, ``num_jobs`` at a time.

    Runs with the same directory are one. A RuntimeError names the log of a run
    that failed.
    """
    once = {run.directory: run for run in runs}
    todo = [run for run in once.values() if not has_ended(run)]
    if not todo:
        return
    stop = threading.Event()
    total = sum(run.config.train.max_steps for run in todo)
    quarters = _quarters(todo) if len(todo) <= num_jobs else iter(())
    begin, num_before = time.monotonic(), sum(map(_num_steps, todo))
    with (
        concurrent.futures.ThreadPoolExecutor(num_jobs) as pool,
        tqdm(total=total, unit="step", smoothing=0.05, disable=None) as bar,
    ):
        try:
            pending = {pool.submit(run_process, run, stop) for run in todo}
            while pending:
                done, pending = concurrent.futures.wait(
                    pending, 1.0, concurrent.futures.FIRST_EXCEPTION
                )
                for future in done:
                    future.result()
                bar.update(sum(map(_num_steps, todo)) - bar.n)
                if pending and (line := next(quarters, None)):
                    tqdm.write(f"  {line}")
                    sys.stdout.flush()
                num_done = f"{len(todo) - len(pending)} of {len(todo)} runs"
                bar.set_postfix_str(num_done)
                if done and bar.disable:
                    taken = time.monotonic() - begin
                    steps = sum(map(_num_steps, todo))
                    left = taken * (total - steps) / max(steps - num_before, 1)
                    text = f"{num_done} done, {tqdm.format_interval(left)} left"
                    print(text, file=sys.stderr, flush=True)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _quarters(runs: Sequence[PlannedRun]) -> Iterator[str | None]:
    """Yield the losses of runs at a quarter, half, three quarters; or None."""
    length = min(run.config.train.max_steps for run in runs)
    for quarter in (1, 2, 3) if length >= LEAST_SHOWN else ():
        step = quarter * length // 4
        while any(_num_steps(run) < step for run in runs):
            yield None
        losses = [f"{run.method} {_loss(run, step - 1):.3g}" for run in runs]
        yield f"step {step} of {length}: loss {', '.join(losses)}"


def _loss(run: PlannedRun, step: int) -> float:
    return float(RunRecord.load(run.directory).loss[step])


def _num_steps(run: PlannedRun) -> int:
    return num_steps(run.directory)


def run_process(run: PlannedRun, stop: threading.Event) -> None:
    """Run a run by ``tools/pretrain.py``.

    Its ``run.json`` then also has the ``commit`` (several if the run was
    resumed under another) and ``elapsed_seconds``, the time of its processes.
    A RuntimeError names the log of a run that failed.
    """
    directory = run.directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    config_file = directory.with_name(directory.name + ".yaml")
    values = json.loads(json.dumps(run.config.to_dict()))
    OmegaConf.save(OmegaConf.create(values), config_file)
    log_file = directory.with_name(directory.name + ".log")
    begin, code_commit = time.monotonic(), commit()
    code = run_until(config_file, stop, log_file)
    _add_facts(directory, code_commit, time.monotonic() - begin)
    if code is None:
        return
    if code not in (0, 1) or not has_ended(run):
        last = log_file.read_text(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(
            f"run {directory} failed (exit status {code}): {last}; see "
            f"{log_file}"
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


def preload() -> None:
    """Begin to import what runs need, in the process they are forked from."""
    if not _forks():
        return
    with _one_thread():
        multiprocessing.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


def _forks() -> bool:
    """Whether runs are forked: a process that has asked for GPUs must not."""
    try:
        importlib.metadata.distribution("paddlepaddle-gpu")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in this block compute on one thread."""
    with _MULTIPROCESSING:
        previous = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            yield
        finally:
            del os.environ["OMP_NUM_THREADS"]
            if previous is not None:
                os.environ["OMP_NUM_THREADS"] = previous


def run_until(config: Path, stop: threading.Event, log: Path) -> int | None:
    """Run ``tools/pretrain.py`` on one thread; its output is added to ``log``.

    Returns:
        Its exit status, None if it was stopped.
    """
    preload()
    context: ForkServerContext | SpawnContext = (
        multiprocessing.get_context("forkserver")
        if _forks()
        else multiprocessing.get_context("spawn")
    )
    process = context.Process(target=_pretrain, args=(config, log))
    with _one_thread():
        process.start()
    try:
        while not stop.is_set():
            if (code := _exit_code(process)) is not None:
                return code
            stop.wait(_POLL_SECONDS)
        return None
    finally:
        process.terminate()
        end = time.monotonic() + _GRACE_SECONDS
        while _exit_code(process) is None and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        process.kill()


def _exit_code(process: BaseProcess) -> int | None:
    with _MULTIPROCESSING:
        return process.exitcode


def _pretrain(config: Path, log: Path) -> None:
    """Run the command in this process, as if it had been typed."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["pretrain.py", str(config)]
    import pretrain

    pretrain.run()


def has_ended(run: PlannedRun) -> bool:
    """Whether the run is there, made with the same config."""
    run_file = run.directory / "run.json"
    if not run_file.exists():
        return False
    its = json.loads(run_file.read_text())
    return its.get("status") in ENDED and its["config"] == as_json(run.config)


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
