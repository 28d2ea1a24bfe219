# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What one section of a report compares: methods, seeds, clean twins."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from adagc_lab.record.files import RunRecord
from paddle_adagc.checks import check_choice

_LABELS = {"global_norm": "GlobalGC", "adagc": "AdaGC"}
_PER_RUN = ("seed", "output_dir")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Runs that differ in the method alone."""

    title: str
    """Heading of the section, for example ``"Llama proxy, no faults"``."""

    description: str
    """What was trained and why, as plain text."""

    runs: dict[str, list[RunRecord]]
    """Runs of each method, one per seed, the same seeds in the same order for
    every method. The others are compared with the first method, whose worst
    event the figures show."""

    clean_runs: dict[str, list[RunRecord]] = dataclasses.field(
        default_factory=dict
    )
    """The same method, seeds and batches without faults, in the order of
    ``runs``. Methods may be left out."""

    skip_steps: int = 200
    """First steps that are not judged: the initial descent."""

    window: int = 1000
    """Window of the spike score, in steps."""

    dynamics_tensor: str | None = None
    """Tensor whose norms a figure of the whole run shows."""

    paired: bool = True
    """Whether the methods' runs pair by seed; if not, one run a method."""

    def __post_init__(self) -> None:
        """Check the name of the tensor, which a person wrote."""
        for run, *_ in self.runs.values() if self.dynamics_tensor else ():
            what = f"dynamics_tensor of {run.name}"
            check_choice(what, self.dynamics_tensor, run.tensor_names)

    @property
    def reference(self) -> str:
        """The first method."""
        return next(iter(self.runs))

    @property
    def seeds(self) -> list[object]:
        """Seed of each run of a method, ``None`` where not known."""
        if not self.paired:
            return [None]
        return [run.run.get("seed") for run in self.runs[self.reference]]

    def all_runs(self) -> list[RunRecord]:
        """Return the runs of all methods."""
        return [run for runs in self.runs.values() for run in runs]

    def first_methods(self, count: int) -> Experiment:
        """Return a copy with at most the first ``count`` methods."""
        runs, clean = (
            {m: group[m] for m in [*self.runs][:count] if m in group}
            for group in (self.runs, self.clean_runs)
        )
        return dataclasses.replace(self, runs=runs, clean_runs=clean)


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn nested options into ``{"clip.beta": 0.99}``."""
    return pd.json_normalize({**config}).squeeze(axis=0).to_dict()


def shared_options(run: RunRecord) -> dict[str, Any]:
    """Return a run's options, flat, but for its seed and its folder."""
    return {
        key: value
        for key, value in flatten(run.run.get("config", {})).items()
        if key.rsplit(".", 1)[-1] not in _PER_RUN
    }


def compare_runs(paths: Sequence[Path]) -> Experiment:
    """Read a user's runs and group those that differ in the seed alone.

    Groups with the same seeds are methods, paired by seed and named after
    their clip, or after their directory if two have the same clip. Otherwise
    every run stands for itself, without pairs. The first is the one to compare
    with. A ValueError names a path given twice, a damaged or an empty run.
    """
    runs = _load_all(paths)
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        same = json.dumps(shared_options(run), sort_keys=True)
        groups.setdefault(same, []).append(run)
    grouped = [sorted(group, key=_seed) for group in groups.values()]
    seeds = {tuple(map(_seed, group)) for group in grouped}
    paired = len(seeds) == 1 and len({*min(seeds)}) == len(min(seeds))
    if not paired:
        grouped = [[run] for run in runs]
    shortest = min(
        (r.num_steps for r in runs if r.run.get("status") != "diverged"),
        default=max(run.num_steps for run in runs),
    )
    notes = _notes(runs, shortest, paired)
    grouped = [[_cut(run, shortest) for run in group] for group in grouped]
    labels = _labels(grouped)
    return Experiment(
        title=", ".join(labels),
        description=" ".join(notes),
        runs=dict(zip(labels, grouped, strict=True)),
        skip_steps=min(200, shortest // 10),
        window=1000 if shortest > 1000 else 200,
        paired=paired,
    )


def _load_all(paths: Sequence[Path]) -> list[RunRecord]:
    """Read runs, each named by its path below their common folder."""
    root = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    runs: dict[str, RunRecord] = {}
    for path in paths:
        name = path.absolute().relative_to(root).as_posix()
        if name in runs:
            raise ValueError(f"{path} is given twice: give every run once")
        run = RunRecord.load(path)
        if not run.num_steps:
            raise ValueError(
                f"{path} holds no step yet: wait for the first one, or resume "
                "it"
            )
        runs[name] = dataclasses.replace(run, name=name)
    return [*runs.values()]


def _notes(runs: Sequence[RunRecord], shortest: int, paired: bool) -> list[str]:
    """Say what else differs between the runs."""
    notes = []
    if not paired:
        notes.append(
            "The runs do not have the same seeds: differences between them are "
            "partly those of the seeds."
        )
    names = {run.run.get("machine", {}).get("processor") for run in runs}
    processors = sorted(str(name) for name in names if name)
    if len(processors) > 1:
        notes.append(
            f"The runs come from different processors ({', '.join(processors)})"
            ": differences between them are partly those of rounding."
        )
    if any(run.num_steps > shortest for run in runs):
        notes.append(
            f"Compared over the first {shortest:,} steps, of all runs."
        )
    return notes


def _cut(run: RunRecord, num_steps: int) -> RunRecord:
    """Return a run's first steps, in which it has not diverged."""
    if run.num_steps > num_steps and run.run.get("status") == "diverged":
        facts = {**run.run, "status": "diverged later"}
        run = dataclasses.replace(run, run=facts)
    return run.first_steps(num_steps)


def _labels(grouped: Sequence[Sequence[RunRecord]]) -> list[str]:
    """Name each group by its clip, or by its first run's directory."""
    clips = [
        str(group[0].run.get("config", {}).get("clip", {}).get("name"))
        for group in grouped
    ]
    if len({*clips}) < len(clips):
        return [group[0].name for group in grouped]
    return [_LABELS.get(clip, clip) for clip in clips]


def _seed(run: RunRecord) -> int:
    return int(run.run.get("seed", 0))


def common_and_different(
    experiment: Experiment,
) -> tuple[pd.Series, pd.DataFrame]:
    """Split the methods' options, as text: shared ones, and a column each."""
    table = pd.DataFrame(
        {
            method: pd.Series(shared_options(runs[0]), dtype=object).map(str)
            for method, runs in experiment.runs.items()
        }
    ).fillna("–")
    is_shared = table.nunique(axis=1) == 1
    return table[is_shared].iloc[:, 0], table[~is_shared]
