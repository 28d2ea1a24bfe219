# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Grids of paired runs: methods x seeds, with and without faults.

Every cell is a run directory of its own. Its name is a digest of the cell's
config, so that a cell that several grids ask for exists once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_adagc.checks import check_integer
from paddle_adagc.lab.reproduce.grid_file import ExperimentConfig
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.parse import merged, parse_config, read_values


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

    @property
    def name(self) -> str:
        """``"AdaGC-seed101-clean"``: unique in its experiment."""
        method = re.sub(r"[^\w.]+", "-", self.method)
        return f"{method}-seed{self.seed}" + "-clean" * self.is_clean_twin


def make_cells(
    experiment: ExperimentConfig,
    grid_file: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    max_steps: int | None = None,
    num_seeds: int | None = None,
) -> list[Cell]:
    """All runs of an experiment, seed by seed.

    Args:
        experiment: The experiment.
        grid_file: File it came from, for the path of its run config.
        store: Folder of the run directories of all grids.
        max_steps: Length of every run instead of the config's; the steps of
            the faults move in proportion.
        num_seeds: At most so many of its seeds; None: all.

    Raises:
        ValueError: The experiment does not fit its run config.
    """
    base = base_values(experiment, grid_file)
    full_length = base["train"]["max_steps"]
    if max_steps is not None:
        base["train"]["max_steps"] = check_integer("max_steps", max_steps, 1)
    ratio = base["train"]["max_steps"] / full_length
    faults = [_moved(fault, ratio) for fault in experiment.faults]
    twins = [(faults, False)]
    if faults and experiment.twins:
        twins.insert(0, ([], True))
    cells = []
    for seed in experiment.seeds[:num_seeds]:
        for method, changes in experiment.all_methods.items():
            for its_faults, is_clean_twin in twins:
                values = merged(base, changes)
                values["faults"] = its_faults
                values["train"] |= {"seed": seed, "visualdl": False}
                config = in_store(parse_config(values), store)
                cells.append(
                    Cell(experiment.name, method, seed, is_clean_twin, config)
                )
    return cells


def base_values(
    experiment: ExperimentConfig, grid_file: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return the values of a run config that an experiment's methods change.

    A run of a grid keeps one checkpoint, unless its config says otherwise.
    """
    base = read_values(Path(grid_file).parent / experiment.config)
    base = merged(base, experiment.changes)
    base["train"].setdefault("keep_checkpoints", 1)
    return base


def in_store(config: RunConfig, store: str | os.PathLike[str]) -> RunConfig:
    """Return the same run in its directory of ``store``."""
    directory = Path(store) / digest(as_json(config))
    train = dataclasses.replace(config.train, output_dir=str(directory))
    return dataclasses.replace(config, train=train)


def as_json(config: RunConfig) -> dict[str, Any]:
    """Return a run's config as ``run.json`` holds it: without its directory."""
    values = json.loads(json.dumps(config.to_dict()))
    del values["train"]["output_dir"]
    return typing.cast("dict[str, Any]", values)


def digest(config: Mapping[str, Any]) -> str:
    """Name of a run in a store: of what :func:`as_json` returns."""
    text = json.dumps(config, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _moved(fault: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """Return a fault whose steps are scaled to a run of another length."""
    moved = dict(fault)
    for key in ("start", "every", "stop"):
        if fault.get(key) is not None:
            moved[key] = max(round(fault[key] * ratio), 1)
    if fault.get("steps") is not None:
        moved["steps"] = [round(step * ratio) for step in fault["steps"]]
    if moved.get("every") is not None:
        moved["every"] = max(moved["every"], moved.get("duration", 1))
    return moved
