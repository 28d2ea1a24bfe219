# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""All runs of all results, found by what they trained and not by who asked.

A rule asks for an :class:`Arm`, the config of one method in one experiment; the
pool answers with every run of that config, whatever its seed and whichever
target ordered it. Under a constant schedule a run of fewer steps is a prefix of
a longer one, so runs of all lengths answer; otherwise the length has to match.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.checks import suggestion
from paddle_adagc.clips.registry import CLIPS
from paddle_adagc.lab.extensions import argument_default
from paddle_adagc.lab.report.experiment import flatten
from paddle_adagc.lab.reproduce.grid import (
    ExperimentConfig,
    as_json,
    base_values,
    load_target,
    make_cells,
)
from paddle_adagc.lab.reproduce.results import CellResult, TargetResult
from paddle_adagc.lab.train.parse import parse_config

_PER_RUN = ("train.seed", "data.seed", "train.max_steps", "train.output_dir")


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but the seed."""

    signature: str
    """Config without seed and length, as text."""

    num_steps: int
    is_constant: bool
    """Whether the schedule is constant, so that shorter runs are prefixes."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Arm:
        """Return the arm of a run's config with dotted keys.

        Arguments of the clip that equal its defaults do not count, so
        ``{"clip.name": "adagc"}`` and the same with ``clip.beta`` 0.99 are one
        arm.
        """
        kept = {
            key: value
            for key, value in config.items()
            if key not in _PER_RUN and not _is_default(key, value, config)
        }
        return cls(
            signature=json.dumps(kept, sort_keys=True),
            num_steps=int(config["train.max_steps"]),
            is_constant=config.get("schedule.kind") == "constant",
        )

    def takes(self, other: Arm) -> bool:
        """Whether a run of ``other`` counts as one of this arm."""
        return self.signature == other.signature and (
            self.is_constant or self.num_steps == other.num_steps
        )


def _is_default(key: str, value: Any, config: Mapping[str, Any]) -> bool:
    section, _, argument = key.partition(".")
    if section != "clip" or argument == "name":
        return False
    clip = {k[5:]: v for k, v in config.items() if k.startswith("clip.")}
    if clip.get("name") not in CLIPS:
        return False
    try:
        return bool(value == argument_default(clip, argument))
    except KeyError:  # an argument of an earlier version
        return False


@dataclasses.dataclass
class Setting:
    """Experiments that train the same but for the method, as one."""

    first: ExperimentConfig
    """The first of them, which names the setting."""

    arms: dict[str, Arm] = dataclasses.field(default_factory=dict)
    """By method; the first is the reference."""

    paper: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The paper's values: label -> method -> value."""

    def has_room_for(self, arms: Mapping[str, Arm]) -> bool:
        """Whether no name would stand for two arms."""
        return all(
            name not in self.arms or self.arms[name].takes(arm)
            for name, arm in arms.items()
        )

    def add(
        self, arms: Mapping[str, Arm], paper: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Add the methods that are not there yet, whatever their names."""
        for name, arm in arms.items():
            if not any(known.takes(arm) for known in self.arms.values()):
                self.arms[name] = arm
        for label, values in paper.items():
            self.paper.setdefault(label, {}).update(values)


class Catalogue:
    """What the grids define: arms by target, experiment and method; settings.

    ``grid_files`` are by target.
    """

    def __init__(self, grid_files: Mapping[str, Path]) -> None:
        self._files = dict(grid_files)
        self.targets = [*grid_files]
        self._experiments = {
            (target, experiment.name): experiment
            for target, path in self._files.items()
            for experiment in load_target(path).experiments
        }
        self._arms: dict[tuple[str, str], dict[str, Arm]] = {}

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether a target has an experiment of that name."""
        return key in self._experiments

    def arm(self, target: str, experiment: str, method: str) -> Arm:
        """Return the arm of a method; a ValueError names what is not there."""
        arms = self.arms(target, experiment)
        if method not in arms:
            raise ValueError(
                f"{target}, {experiment}: no method {method!r}"
                f"{suggestion(method, arms)}"
            )
        return arms[method]

    def arms(self, target: str, experiment: str) -> dict[str, Arm]:
        """All arms of an experiment by method, without the clean twins."""
        key = (target, experiment)
        if key not in self._experiments:
            names = [name for its, name in self._experiments if its == target]
            raise ValueError(
                f"{target} has no experiment {experiment!r}"
                f"{suggestion(experiment, names)}"
            )
        if key not in self._arms:
            cells = make_cells(
                self._experiments[key], self._files[target], "", num_seeds=1
            )
            self._arms[key] = {
                cell.method: Arm.of(flatten(as_json(cell.config)))
                for cell in cells
                if not cell.is_clean_twin
            }
        return self._arms[key]

    def settings(self, targets: Sequence[str]) -> list[Setting]:
        """Return these targets' experiments in order, alike ones as one.

        Two are alike if they train the same but for the clip and no method of
        one has the name of another method of the other.
        """
        keys = [
            key
            for target in targets
            for key in self._experiments
            if key[0] == target
        ]
        found: dict[tuple[str, int], list[Setting]] = {}
        settings = []
        for target, name in keys:
            experiment = self._experiments[target, name]
            base = self._base(target, experiment)
            length = 0 if base.is_constant else base.num_steps
            alike = found.setdefault((base.signature, length), [])
            arms = self.arms(target, name)
            setting = next((s for s in alike if s.has_room_for(arms)), None)
            if setting is None:
                setting = Setting(experiment)
                alike.append(setting)
                settings.append(setting)
            setting.add(arms, experiment.paper)
        return settings

    def _base(self, target: str, experiment: ExperimentConfig) -> Arm:
        """Return the config that the methods change, without its clip."""
        values = base_values(experiment, self._files[target])
        values["faults"] = experiment.faults
        config = flatten(as_json(parse_config(values)))
        return Arm.of({k: v for k, v in config.items() if k[:5] != "clip."})


class Pool:
    """Every run once, whichever results hold it."""

    def __init__(self, results: Iterable[TargetResult]) -> None:
        self._runs: dict[str, list[tuple[Arm, CellResult]]] = {}
        known: set[str] = set()
        for result in results:
            for experiment in result.experiments:
                for cell in experiment.cells:
                    if not cell.num_steps or cell.run_id in known:
                        continue
                    known.add(cell.run_id)
                    arm = Arm.of({**experiment.config, **cell.config})
                    runs = self._runs.setdefault(arm.signature, [])
                    runs.append((arm, cell))

    def runs(self, arm: Arm) -> list[CellResult]:
        """Return runs of an arm, of all seeds, lengths and processors."""
        runs = self._runs.get(arm.signature, [])
        return [cell for run, cell in runs if arm.takes(run)]


class PooledResults:
    """Where rules find their runs and numbers: all results, by the grids."""

    def __init__(
        self, catalogue: Catalogue, results: Mapping[str, TargetResult]
    ) -> None:
        self._catalogue = catalogue
        self._results = results
        self.pool = Pool(results.values())

    def runs(
        self, target: str, experiment: str, method: str
    ) -> list[CellResult]:
        """Every run of a method's config, whoever ordered it."""
        if (target, experiment) not in self._catalogue:
            return []
        return self.pool.runs(self._catalogue.arm(target, experiment, method))

    def numbers(
        self, target: str, experiment: str, method: str, measure: str
    ) -> list[float] | None:
        """Return what a target timed, counted or modelled; None for runs."""
        if (target, experiment) in self._catalogue:
            return None
        result = self._results.get(target)
        found = result.experiment(experiment) if result else None
        values = found.values(method, measure) if found else []
        return [value for value in values if value is not None]
