# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the runs of a grid: in parallel, resumable, with their progress."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from omegaconf import OmegaConf
from tqdm import tqdm

from adagc_lab.record.files import update_run_json
from adagc_lab.reproduce.grid import PlannedRun, as_json

ENDED = ("finished", "diverged")
_ROOT = Path(__file__).resolve().parents[3]


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
                num_done = f"{len(todo) - len(pending)} of {len(todo)} runs"
                bar.set_postfix_str(num_done)
                if done and bar.disable:
                    print(f"{num_done} done", file=sys.stderr, flush=True)
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _num_steps(run: PlannedRun) -> int:
    """Return the steps that a run has logged."""
    metrics = run.directory / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


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
    command = [f"{_ROOT}/tools/pretrain.py", str(config_file)]
    begin, code_commit = time.monotonic(), commit()
    with log_file.open("ab") as log:
        code = run_until(command, stop, log)
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


def run_until(
    arguments: Sequence[str], stop: threading.Event, log: IO[bytes]
) -> int | None:
    """Run Python on one thread; its exit status, None if it was stopped."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while not stop.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1.0)
        return None
    finally:
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
                ("status", "--porcelain", "paddle_adagc", "configs"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + "+changes" * bool(changed)
