# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Grids of paired runs: methods x seeds, with and without faults.

A grid is a YAML file, typed and checked as :class:`TargetConfig`. Every run has
its own directory. Its name is a digest of the run's config, so that a run
that several grids ask for exists once.
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
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from adagc_lab.section import Flag, Natural, Section, mistakes
from adagc_lab.train.config import RunConfig, with_output_dir
from adagc_lab.train.parse import merged, parse_config, read_values


class ExperimentConfig(Section):
    """Methods to compare on one run config."""

    name: str
    """Name of the experiment's directory."""

    title: str
    """Heading in the report."""

    description: str
    """What is trained and why, one paragraph."""

    config: str
    """Run config, relative to the grid's file."""

    seeds: Annotated[list[Natural], Field(min_length=1)]
    """One run of each method per seed."""

    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Name of the method -> changes to the run config, as nested keys. The
    others are compared with the first."""

    changes: dict[str, Any] = Field(default_factory=dict)
    """Changes to the run config for all methods."""

    faults: list[dict[str, Any]] = Field(default_factory=list)
    """Faults to inject, in place of the config's."""

    twins: Flag = True
    """Whether every run with faults has a clean twin, for the paired excess."""

    skip_steps: Natural = 200
    """First steps that are not judged."""

    dynamics: str | None = None
    """Tensor whose norms the charts of the optimizer's dynamics show."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds} repeats a seed")
        return self


class TargetConfig(Section):
    """What a grid's file holds: a table or a figure to reproduce."""

    title: str
    experiments: Annotated[list[ExperimentConfig], Field(min_length=1)]
    former: tuple[str, ...] = ()
    """Methods whose code is gone: their results stay, they are not run."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [experiment.name for experiment in self.experiments]
        if len(set(names)) < len(names):
            raise ValueError(f"the experiments' names {names} repeat one")
        return self

    def only(self, name: str | None) -> TargetConfig:
        """Return the target with this experiment alone; None: all of it."""
        if name is None:
            return self
        found = [e for e in self.experiments if e.name == name]
        if not found:
            names = [e.name for e in self.experiments]
            raise ValueError(f"{self.title!r} has {names}, not {name!r}")
        return self.model_copy(update={"experiments": found})


def load_target(path: str | os.PathLike[str]) -> TargetConfig:
    """Read a grid's file; a ValueError names the file and the mistake."""
    try:
        return TargetConfig(**read_values(path))
    except ValidationError as error:
        found = mistakes(error, TargetConfig)
        raise ValueError(f"{path}: {found}") from error


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run of a grid."""

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


def make_runs(
    experiment: ExperimentConfig,
    grid_file: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    max_steps: int | None = None,
    num_seeds: int | None = None,
) -> list[PlannedRun]:
    """All runs of an experiment, seed by seed.

    ``store`` is the folder of the run directories of all grids. ``max_steps``
    replaces the config's. ``num_seeds`` is the most seeds; None: all.
    """
    base = read_values(Path(grid_file).parent / experiment.config)
    base = merged(base, experiment.changes)
    base["train"].setdefault("keep_checkpoints", 1)
    if max_steps is not None:
        base["train"]["max_steps"] = max_steps
    base["faults"] = experiment.faults or base.get("faults", [])
    twins = [True, False] if base["faults"] and experiment.twins else [False]
    runs = []
    for seed in experiment.seeds[:num_seeds]:
        for method, changes in experiment.methods.items():
            for is_clean_twin in twins:
                values = merged(base, changes)
                if is_clean_twin:
                    values["faults"] = []
                values["train"] |= {"seed": seed, "visualdl": False}
                config = parse_config(values)
                directory = Path(store) / digest(as_json(config))
                config = with_output_dir(config, directory)
                runs.append(PlannedRun(method, seed, is_clean_twin, config))
    return runs


def as_json(config: RunConfig) -> dict[str, Any]:
    """Return a run's config as ``run.json`` holds it: without its directory."""
    values = json.loads(json.dumps(config.to_dict()))
    del values["train"]["output_dir"]
    return typing.cast("dict[str, Any]", values)


def digest(config: Mapping[str, Any]) -> str:
    """Name of a run in a store: of what :func:`as_json` returns."""
    text = json.dumps(config, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:16]
