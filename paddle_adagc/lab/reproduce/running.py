# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the cells of a grid: in parallel and resumable."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from paddle_adagc.lab.record.files import update_run_json
from paddle_adagc.lab.reproduce.continuing import continue_shorter
from paddle_adagc.lab.reproduce.grid import Cell, as_json
from paddle_adagc.lab.reproduce.progress import Progress

ENDED = ("finished", "diverged")
_ROOT = Path(__file__).resolve().parents[3]


RunCell = Callable[[Cell, threading.Event], None]


def run_cells(
    cells: Sequence[Cell], num_jobs: int, run: RunCell | None = None
) -> None:
    """Run the cells that have not ended yet, in order.

    Cells with the same run directory are one run.

    Args:
        cells: The first ones are begun first.
        num_jobs: Cells at a time.
        run: Runs one cell until an event is set; by default in a process of
            its own.

    Raises:
        RuntimeError: A run failed; its log is named.
    """
    once = {cell.directory: cell for cell in cells}
    todo = [cell for cell in once.values() if not has_ended(cell)]
    if todo:
        _Pool(todo, run or run_process).work(num_jobs)


class _Pool:
    """Cells on their way, and how far they are."""

    def __init__(self, todo: list[Cell], run: RunCell) -> None:
        self._todo, self._run = todo, run
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._running: set[Path] = set()
        self._steps_behind = self._num_ended = 0
        self._total = sum(cell.config.train.max_steps for cell in todo)

    def work(self, num_jobs: int) -> None:
        with (
            concurrent.futures.ThreadPoolExecutor(num_jobs) as pool,
            Progress(len(self._todo), num_jobs) as progress,
        ):
            try:
                futures = [pool.submit(self._do, cell) for cell in self._todo]
                for _ in _until_done(futures):
                    self._show(progress)
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            self._show(progress)

    def _do(self, cell: Cell) -> None:
        with self._lock:
            self._running.add(cell.directory)
        try:
            self._run(cell, self._stop)
        finally:
            with self._lock:
                self._running.discard(cell.directory)
                self._steps_behind += cell.config.train.max_steps
                self._num_ended += 1

    def _show(self, progress: Progress) -> None:
        with self._lock:
            running, num_ended = list(self._running), self._num_ended
            num_steps = self._steps_behind
        num_steps += sum(_num_steps(directory) for directory in running)
        progress.show(num_steps, self._total, num_ended)


def _until_done(
    futures: Sequence[concurrent.futures.Future[None]],
) -> Iterator[None]:
    while True:
        done, pending = concurrent.futures.wait(
            futures, 1.0, concurrent.futures.FIRST_EXCEPTION
        )
        for future in done:
            future.result()
        if not pending:
            return
        yield


def run_process(cell: Cell, stop: threading.Event) -> None:
    """Run a cell by ``python -m paddle_adagc.lab.cli.pretrain``.

    Under a constant schedule it continues a shorter run of the same config.
    Its ``run.json`` then also has the ``commit`` (several if the run was
    resumed under another) and ``elapsed_seconds``, the time of its processes.

    Raises:
        RuntimeError: The run failed; its log is named.
    """
    directory = cell.directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    continue_shorter(cell)
    config_file = directory.with_name(directory.name + ".yaml")
    values = json.loads(json.dumps(cell.config.to_dict()))
    OmegaConf.save(OmegaConf.create(values), config_file)
    log_file = directory.with_name(directory.name + ".log")
    command = [
        sys.executable,
        "-m",
        "paddle_adagc.lab.cli.pretrain",
        str(config_file),
    ]
    begin, code_commit = time.monotonic(), commit()
    with log_file.open("ab") as log:
        code = run_until(command, stop, stdout=log)
    _add_facts(directory, code_commit, time.monotonic() - begin)
    if code is None:
        return
    if code not in (0, 1) or not has_ended(cell):
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

    Args:
        command: Program and arguments.
        stop: The command is terminated once it is set.
        options: Of :class:`subprocess.Popen`.
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
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def has_ended(cell: Cell) -> bool:
    """Whether the run is there, made with the same config."""
    run_file = cell.directory / "run.json"
    if not run_file.exists():
        return False
    run = json.loads(run_file.read_text())
    return run.get("status") in ENDED and run["config"] == as_json(cell.config)


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


def _num_steps(directory: Path) -> int:
    """Return steps that a run has logged."""
    metrics = directory / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0
