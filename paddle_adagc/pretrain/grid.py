# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A grid of paired runs: methods x seeds, with and without faults.

Every cell is a run directory of its own, made by a process of its own; a grid
that was killed goes on where it was, and finished cells are not run again.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from tqdm import tqdm

from paddle_adagc.checks import check_integer, suggestion
from paddle_adagc.pretrain.config import RunConfig
from paddle_adagc.pretrain.parse import parse_config, read_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Methods to compare on one run config."""

    name: str
    """Name of the experiment's directory."""

    title: str
    """Heading in the report."""

    description: str
    """What is trained and why, one paragraph."""

    config: str
    """Run config, relative to the grid's file."""

    seeds: list[int]
    """One run of each method per seed."""

    methods: dict[str, dict[str, Any]]
    """Name of the method -> changes to the run config, as nested keys."""

    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Changes to the run config for all methods."""

    faults: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Faults to inject; every run then has a clean twin, for the paired
    excess."""

    skip_steps: int = 200
    """First steps that are not judged."""

    def __post_init__(self) -> None:
        if not self.seeds or not self.methods:
            raise ValueError(
                f"experiment {self.name!r} needs seeds and methods"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds} repeats a seed")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    experiment: str
    method: str
    seed: int
    is_clean_twin: bool
    config: RunConfig

    @property
    def directory(self) -> Path:
        """Its run directory."""
        return Path(self.config.train.output_dir)


def load_experiments(
    path: str | os.PathLike[str],
) -> tuple[str, list[ExperimentConfig]]:
    """Title and experiments of a grid's file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An unknown or a missing key.
    """
    values = read_values(path)
    known = [field.name for field in dataclasses.fields(ExperimentConfig)]
    experiments = []
    for part in values.get("experiments", []):
        for key in part:
            if key not in known:
                raise ValueError(
                    f"{path}: unknown key {key!r}{suggestion(key, known)}"
                )
        try:
            experiments.append(ExperimentConfig(**part))
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from error
    if not experiments or "title" not in values:
        raise ValueError(f"{path} needs a title and experiments")
    return values["title"], experiments


def make_cells(
    experiment: ExperimentConfig,
    grid_file: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    max_steps: int | None = None,
) -> list[Cell]:
    """All runs of an experiment.

    Args:
        experiment: The experiment.
        grid_file: File it came from, for the path of its run config.
        output_dir: Where the run directories go.
        max_steps: Length of every run instead of the config's; the steps of
            the faults move in proportion.

    Raises:
        ValueError: The experiment does not fit its run config.
    """
    base = read_values(Path(grid_file).parent / experiment.config)
    base = _merged(base, experiment.changes)
    full_length = base["train"]["max_steps"]
    if max_steps is not None:
        check_integer("max_steps", max_steps, 1)
        base["train"]["max_steps"] = max_steps
    ratio = base["train"]["max_steps"] / full_length
    faults = [_moved(fault, ratio) for fault in experiment.faults]
    twins = [([], True), (faults, False)] if faults else [([], False)]
    cells = []
    for seed in experiment.seeds:
        for method, changes in experiment.methods.items():
            for its_faults, is_clean_twin in twins:
                name = re.sub(r"[^\w.]+", "-", method) + f"-seed{seed}"
                name += "-clean" * is_clean_twin
                values = _merged(base, changes)
                values["faults"] = its_faults
                values["train"]["seed"] = seed
                values["train"]["visualdl"] = False
                values["train"]["output_dir"] = str(
                    Path(output_dir) / experiment.name / name
                )
                cells.append(
                    Cell(
                        experiment.name,
                        method,
                        seed,
                        is_clean_twin,
                        parse_config(values),
                    )
                )
    return cells


def run_cells(cells: Sequence[Cell], num_jobs: int) -> None:
    """Run all cells that have not ended yet, ``num_jobs`` at a time.

    Raises:
        RuntimeError: A run failed; its log is named.
    """
    todo = [cell for cell in cells if not _has_ended(cell)]
    if not todo:
        return
    total = sum(cell.config.train.max_steps for cell in todo)
    with (
        concurrent.futures.ThreadPoolExecutor(num_jobs) as pool,
        tqdm(total=total, unit="step", smoothing=0.05) as bar,
    ):
        futures = [pool.submit(_run_cell, cell) for cell in todo]
        try:
            for _ in _until_done(futures):
                bar.n = sum(_num_steps(cell) for cell in todo)
                bar.refresh()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        bar.n = total
        bar.refresh()


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


def _run_cell(cell: Cell) -> None:
    directory = cell.directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    config_file = directory.with_name(directory.name + ".yaml")
    values = json.loads(json.dumps(cell.config.to_dict()))
    OmegaConf.save(OmegaConf.create(values), config_file)
    log_file = directory.with_name(directory.name + ".log")
    command = [sys.executable, "-m", "paddle_adagc.pretrain", str(config_file)]
    with log_file.open("ab") as log:
        code = subprocess.run(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
    if code not in (0, 1) or not _has_ended(cell):
        tail = log_file.read_text(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(
            f"run {directory} failed (exit status {code}): "
            f"{' '.join(tail)}; see {log_file}"
        )


def _has_ended(cell: Cell) -> bool:
    """Whether the run is there; the run itself compares its config."""
    run_file = cell.directory / "run.json"
    if not run_file.exists():
        return False
    run = json.loads(run_file.read_text())
    mine = json.loads(json.dumps(cell.config.to_dict()))
    del mine["train"]["output_dir"]
    return run.get("status") in ("finished", "diverged") and (
        run["config"] == mine
    )


def _num_steps(cell: Cell) -> int:
    """Steps that a run has logged, for the progress bar."""
    if _has_ended(cell):
        return cell.config.train.max_steps
    metrics = cell.directory / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def _merged(
    values: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Deep copy of ``values`` with ``changes``; a clip is replaced whole."""
    merged = json.loads(json.dumps(values))
    for key, change in changes.items():
        old = merged.get(key)
        if isinstance(change, Mapping) and isinstance(old, dict):
            merged[key] = (
                dict(change) if key == "clip" else _merged(old, change)
            )
        else:
            merged[key] = change
    return merged


def _moved(fault: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """A fault whose steps are scaled to a run of another length."""
    moved = dict(fault)
    for key in ("start", "every", "stop"):
        if fault.get(key) is not None:
            moved[key] = max(round(fault[key] * ratio), 1)
    if fault.get("steps") is not None:
        moved["steps"] = [round(step * ratio) for step in fault["steps"]]
    if moved.get("every") is not None:
        moved["every"] = max(moved["every"], moved.get("duration", 1))
    return moved
