# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the file of a grid holds, typed and checked."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_adagc.checks import suggestion
from paddle_adagc.lab.section import Count, Flag, Natural, section
from paddle_adagc.lab.train.parse import read_values


@section
class GridConfig:
    """Methods that differ in the values of a few settings: all combinations."""

    method: dict[str, Any]
    """Changes to the run config for all of them, as nested keys."""

    values: dict[str, list[Any]]
    """Dotted key of the run config -> its values."""

    def methods(self) -> dict[str, dict[str, Any]]:
        """Return changes to the run config by name, such as ``"beta 0.99"``."""
        found = {}
        for combination in itertools.product(*self.values.values()):
            chosen = dict(zip(self.values, combination, strict=True))
            changes = self.method
            for key, value in chosen.items():
                changes = _with(changes, key.split("."), value)
            name = ", ".join(
                f"{key.rsplit('.', 1)[-1]} {value}"
                for key, value in chosen.items()
            )
            found[name] = changes
        return found


@section
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

    seeds: Annotated[list[Natural], Field(min_length=1)]
    """One run of each method per seed."""

    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Name of the method -> changes to the run config, as nested keys. The
    others are compared with the first."""

    grid: GridConfig | None = None
    """More methods, one for each combination of values."""

    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Changes to the run config for all methods."""

    faults: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Faults to inject."""

    twins: Flag = True
    """Whether every run with faults has a clean twin, for the paired excess."""

    skip_steps: Natural = 200
    """First steps that are not judged."""

    paper: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The paper's values: label -> method -> value."""

    dynamics: str | None = None
    """Tensor whose norms the figure of the optimizer's dynamics shows."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds} repeats a seed")
        for label, values in self.paper.items():
            for method in values:
                if method not in self.all_methods:
                    raise ValueError(
                        f"paper[{label!r}] of experiment {self.name!r} names "
                        f"{method!r}, which is no method of it"
                        f"{suggestion(method, self.all_methods)}"
                    )
        return self

    @property
    def all_methods(self) -> dict[str, dict[str, Any]]:
        """``methods`` and those of the grid."""
        return self.methods | (self.grid.methods() if self.grid else {})


@section
class TimingConfig:
    """What to time, clip against clip, in turn within one process.

    Either whole training steps of a run config, or clip steps on one of
    :data:`paddle_adagc.lab.benchmark.clip_step.LISTS`.
    """

    name: str
    title: str
    config: str | None = None
    """Run config, relative to the grid's file."""

    tensors: str | None = None
    """Name of a list of tensors."""

    repetitions: Annotated[Count, Field(ge=2)] = 5
    """Blocks of :attr:`steps` training steps, or single clip steps."""

    steps: Annotated[Count, Field(ge=2)] = 40
    """Training steps of a block, whose median is taken."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.config is None) == (self.tensors is None):
            raise ValueError(
                f"timing {self.name!r} needs either config or tensors"
            )
        return self


@section
class TargetConfig:
    """What a grid's file holds: a table or a figure to reproduce."""

    title: str
    experiments: list[ExperimentConfig] = dataclasses.field(
        default_factory=list
    )
    timings: list[TimingConfig] = dataclasses.field(default_factory=list)
    gpu_hours: Flag = False
    """Set the plan's prediction beside the paper's table of GPU hours."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.experiments or self.timings or self.gpu_hours):
            raise ValueError(f"{self.title!r} has no experiments")
        names = [experiment.name for experiment in self.experiments]
        names += [timing.name for timing in self.timings]
        if len(set(names)) < len(names):
            raise ValueError(f"the experiments' names {names} repeat one")
        return self


def load_target(path: str | os.PathLike[str]) -> TargetConfig:
    """Read a grid's file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An unknown or a missing key, or a bad value.
    """
    try:
        return TargetConfig(**read_values(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _with(
    values: Mapping[str, Any], keys: Sequence[str], value: Any
) -> dict[str, Any]:
    """Return a copy with one value changed."""
    first, *rest = keys
    if rest:
        value = _with(values.get(first, {}), rest, value)
    return {**values, first: value}
