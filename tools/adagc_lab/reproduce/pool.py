# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""All runs of all results, found by what they trained and not by who asked.

A rule asks for a :class:`Method`, its config in one experiment; the pool
answers with every run of that config, whatever its seed and whichever
target ordered it. Under a constant schedule a run of fewer steps is a prefix of
a longer one, so runs of all lengths answer; otherwise the length has to match.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagc_lab.clips import CLIPS
from adagc_lab.report.experiment import flatten
from adagc_lab.reproduce.grid import (
    ExperimentConfig,
    as_json,
    base_values,
    load_target,
    make_runs,
)
from adagc_lab.reproduce.prediction import WRONG, wrong_percent
from adagc_lab.reproduce.results import RunResult, TargetResult
from adagc_lab.train.parse import parse_config
from paddle_adagc.checks import suggestion

_PER_RUN = ("train.seed", "data.seed", "train.max_steps", "train.output_dir")


@dataclasses.dataclass(frozen=True)
class Method:
    """Runs that differ in nothing but the seed."""

    signature: str
    """Config without seed and length, as text."""

    num_steps: int
    is_constant: bool
    """Whether the schedule is constant, so that shorter runs are prefixes."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Method:
        """Make it of a run's flat config; the clip's defaults do not count."""
        clip = {k[5:]: v for k, v in config.items() if k.startswith("clip.")}
        kept = {
            key: value
            for key, value in config.items()
            if key not in _PER_RUN and not _is_default(key, value, clip)
        }
        return cls(
            signature=json.dumps(kept, sort_keys=True),
            num_steps=int(config["train.max_steps"]),
            is_constant=config.get("schedule.kind") == "constant",
        )

    def takes(self, other: Method) -> bool:
        """Whether a run of ``other`` counts as one of this method."""
        return self.signature == other.signature and (
            self.is_constant or self.num_steps == other.num_steps
        )


def _is_default(key: str, value: Any, clip: dict[str, Any]) -> bool:
    argument = key.removeprefix("clip.")
    if argument in (key, "name") or clip.get("name") not in CLIPS:
        return False
    known = inspect.signature(CLIPS[clip["name"]]).parameters
    # Arguments of an earlier version have none.
    return argument in known and bool(value == known[argument].default)


@dataclasses.dataclass
class JoinedExperiment:
    """Experiments that train the same but for the method, as one."""

    first: ExperimentConfig
    """The first of them, which names the joined one."""

    methods: dict[str, Method] = dataclasses.field(default_factory=dict)
    """By method; the first is the reference."""

    paper: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The paper's values: label -> method -> value."""

    keys: list[str] = dataclasses.field(default_factory=list)
    """``target/experiment`` of each."""

    def add(
        self,
        key: str,
        methods: Mapping[str, Method],
        paper: Mapping[str, Mapping[str, float]],
    ) -> bool:
        """Add what is missing; False if a name would stand for two methods."""
        for name, method in methods.items():
            if not self.methods.get(name, method).takes(method):
                return False
        for name, method in methods.items():
            if not any(known.takes(method) for known in self.methods.values()):
                self.methods[name] = method
        self.keys.append(key)
        for label, values in paper.items():
            self.paper.setdefault(label, {}).update(values)
        return True


class Catalogue:
    """The methods of each target's experiments, as the grids define them."""

    def __init__(self, grid_files: Mapping[str, Path]) -> None:
        self._files = dict(grid_files)
        self.targets = [*grid_files]
        self._experiments = {
            (target, experiment.name): experiment
            for target, path in self._files.items()
            for experiment in load_target(path).experiments
        }
        self._methods: dict[tuple[str, str], dict[str, Method]] = {}

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether a target has an experiment of that name."""
        return key in self._experiments

    def methods(self, target: str, experiment: str) -> dict[str, Method]:
        """All methods of an experiment by name, without the clean twins."""
        key = (target, experiment)
        if key not in self._experiments:
            names = [name for its, name in self._experiments if its == target]
            raise ValueError(
                f"{target} has no experiment {experiment!r}"
                f"{suggestion(experiment, names)}"
            )
        if key not in self._methods:
            runs = make_runs(
                self._experiments[key], self._files[target], "", num_seeds=1
            )
            self._methods[key] = {
                run.method: Method.of(flatten(as_json(run.config)))
                for run in runs
                if not run.is_clean_twin
            }
        return self._methods[key]

    def seeds(self, target: str, experiment: str) -> tuple[int, ...]:
        """Return the seeds of an experiment's grid; () if it has none."""
        known = self._experiments.get((target, experiment))
        return tuple(known.seeds) if known else ()

    def method(self, target: str, experiment: str, name: str) -> Method:
        """Return a method; a ValueError names what is not there."""
        methods = self.methods(target, experiment)
        if name not in methods:
            raise ValueError(
                f"{target}, {experiment}: no method {name!r}"
                f"{suggestion(name, methods)}"
            )
        return methods[name]

    def joined(self, targets: Sequence[str]) -> list[JoinedExperiment]:
        """Return experiments in order; those that train the same are one."""
        keys = [
            key
            for target in targets
            for key in self._experiments
            if key[0] == target
        ]
        found: dict[tuple[str, int], list[JoinedExperiment]] = {}
        joined = []
        for key in keys:
            experiment = self._experiments[key]
            base = self._base(key[0], experiment)
            length = 0 if base.is_constant else base.num_steps
            alike = found.setdefault((base.signature, length), [])
            added = "/".join(key), self.methods(*key), experiment.paper
            if not any(one.add(*added) for one in alike):
                alike.append(JoinedExperiment(experiment))
                alike[-1].add(*added)
                joined.append(alike[-1])
        return joined

    def _base(self, target: str, experiment: ExperimentConfig) -> Method:
        """Return the config that the methods change, without its clip."""
        values = base_values(experiment, self._files[target])
        values["faults"] = experiment.faults
        config = flatten(as_json(parse_config(values)))
        return Method.of({k: v for k, v in config.items() if k[:5] != "clip."})


class PooledResults:
    """Where rules find their runs and numbers: all results, by the grids."""

    def __init__(
        self, catalogue: Catalogue, results: Mapping[str, TargetResult]
    ) -> None:
        self._catalogue = catalogue
        self._results = results
        self._runs: dict[str, list[tuple[Method, RunResult]]] = {}
        known: set[str] = set()
        for result in results.values():
            for experiment in result.experiments:
                for run in experiment.all_runs:
                    if not run.num_steps or run.run_id in known:
                        continue
                    known.add(run.run_id)
                    method = Method.of(run.config)
                    runs = self._runs.setdefault(method.signature, [])
                    runs.append((method, run))

    def runs_of(self, method: Method) -> list[RunResult]:
        """Return runs of a method, of all seeds, lengths and processors."""
        runs = self._runs.get(method.signature, [])
        return [run for its, run in runs if method.takes(its)]

    def runs(
        self,
        target: str,
        experiment: str,
        method: str,
        seeds: Sequence[int] = (),
    ) -> list[RunResult]:
        """Every run of a method's config, whoever ordered it.

        ``seeds`` are those that count; (): all.
        """
        if (target, experiment) not in self._catalogue:
            return []
        asked = self._catalogue.method(target, experiment, method)
        return [r for r in self.runs_of(asked) if not seeds or r.seed in seeds]

    def methods(self, target: str, experiment: str) -> list[str]:
        """Names of an experiment's methods; [] if no grid has it."""
        if (target, experiment) not in self._catalogue:
            return []
        return [*self._catalogue.methods(target, experiment)]

    def seeds(self, target: str, experiment: str) -> tuple[int, ...]:
        """Return those of :meth:`Catalogue.seeds`."""
        return self._catalogue.seeds(target, experiment)

    def numbers(
        self, target: str, experiment: str, method: str, measure: str
    ) -> list[float]:
        """Return what a target timed, counted or modelled; none of runs."""
        if measure == WRONG:
            return wrong_percent(
                (signature, run)
                for signature, runs in self._runs.items()
                for _, run in runs
            )
        if (target, experiment) in self._catalogue:
            return []
        result = self._results.get(target)
        found = result.experiment(experiment) if result else None
        values = found.values(method, measure) if found else []
        return [value for value in values if value is not None]
