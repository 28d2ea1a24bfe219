# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the grids define: arms by target, experiment and method; settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from paddle_adagc.checks import suggestion
from paddle_adagc.lab.report.experiment import flatten
from paddle_adagc.lab.reproduce.grid import (
    as_json,
    base_values,
    make_cells,
)
from paddle_adagc.lab.reproduce.grid_file import ExperimentConfig, load_target
from paddle_adagc.lab.reproduce.pool import Arm
from paddle_adagc.lab.train.parse import parse_config

_STORE = Path("cells")


@dataclasses.dataclass(eq=False)
class Setting:
    """Experiments that train the same but for the method, as one."""

    name: str
    title: str
    description: str
    model: str
    """Run config that it is made from, for example ``proxy/ernie_moe``."""

    skip_steps: int
    arms: dict[str, Arm] = dataclasses.field(default_factory=dict)
    """By method; the first is the reference."""

    paper: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The paper's values: label -> method -> value."""

    @classmethod
    def of(cls, experiment: ExperimentConfig) -> Setting:
        """Return the setting of an experiment, without its methods."""
        return cls(
            experiment.name,
            experiment.title,
            experiment.description,
            experiment.config.removeprefix("../").removesuffix(".yaml"),
            experiment.skip_steps,
        )

    def has_room_for(self, arms: Mapping[str, Arm]) -> bool:
        """Whether no name would stand for two arms."""
        return all(
            name not in self.arms or self.arms[name].takes(arm)
            for name, arm in arms.items()
        )

    def add(
        self,
        arms: Mapping[str, Arm],
        paper: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Add the methods that are not there yet, whatever their names."""
        for name, arm in arms.items():
            if not any(known.takes(arm) for known in self.arms.values()):
                self.arms[name] = arm
        for label, values in paper.items():
            self.paper.setdefault(label, {}).update(values)


class Catalogue:
    """The grids' experiments.

    Args:
        grid_files: By target.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A grid, or one of its run configs, is not valid.
    """

    def __init__(self, grid_files: Mapping[str, Path]) -> None:
        self._files = dict(grid_files)
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
        """Return the arm of a method.

        Raises:
            ValueError: The grid has no such experiment or method.
        """
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
            names = [
                name for other, name in self._experiments if other == target
            ]
            raise ValueError(
                f"{target} has no experiment {experiment!r}"
                f"{suggestion(experiment, names)}"
            )
        if key not in self._arms:
            cells = make_cells(
                self._experiments[key],
                self._files[target],
                _STORE,
                num_seeds=1,
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
        found: dict[tuple[str, int], list[Setting]] = {}
        settings = []
        for target in targets:
            for (its_target, name), experiment in self._experiments.items():
                if its_target != target:
                    continue
                base = self._base(target, experiment)
                key = (
                    base.signature,
                    0 if base.is_constant else base.num_steps,
                )
                arms = self.arms(target, name)
                alike = found.setdefault(key, [])
                setting = next((s for s in alike if s.has_room_for(arms)), None)
                if setting is None:
                    setting = Setting.of(experiment)
                    alike.append(setting)
                    settings.append(setting)
                setting.add(arms, experiment.paper)
        return settings

    @cached_property
    def targets(self) -> list[str]:
        """Targets with experiments, in the order of the files."""
        return [*dict.fromkeys(target for target, _ in self._experiments)]

    def _base(self, target: str, experiment: ExperimentConfig) -> Arm:
        """Return the config that the methods change, without its clip."""
        values = base_values(experiment, self._files[target])
        values["faults"] = experiment.faults
        config = flatten(as_json(parse_config(values)))
        return Arm.of({k: v for k, v in config.items() if k[:5] != "clip."})
