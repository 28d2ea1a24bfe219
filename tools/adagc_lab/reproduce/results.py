# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of a target as JSON lines: a line per experiment and per run.

The first line is about the target and has a checksum of the others. Then an
``"experiment"`` line with the options that all of its runs share is followed by
its ``"cell"`` lines, with the options in which the run differs, its commit,
seed, versions, timings and measures. Newer lines also hold the processor, the
corpus' SHA-256 and the losses of all steps in 16 bits
(:mod:`.packed`); older lines are read without them.
Numbers have the digits of :func:`adagc_lab.committed.as_json`, measures of runs
fewer: :data:`adagc_lab.committed.SINGLE`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from adagc_lab.checksums import SEAL, check_seal, sealed
from adagc_lab.committed import as_json
from adagc_lab.report.excess import paired_excess
from adagc_lab.report.judged import spike_mass
from adagc_lab.reproduce.packed import decode_losses
from paddle_adagc.files import atomic_write

RESULTS = "results.jsonl"
"""Name of the file in a target's directory."""

SPIKE_EVENTS = "spike_events"
"""The measure that is a rate: events of the 10-sigma spike score with window
1,000, per 1,000 judged steps."""

EVENTS, JUDGED = "events_1000", "judged_1000"
"""Its two counts, which a run has both or neither of."""

RECORDED_BEFORE = "recorded before"
"""Processor of a line that does not name one."""

_CHECKSUM = "lines_sha256"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run, or one repetition of a timing, in numbers."""

    method: str
    seed: int
    measures: dict[str, float]
    """What was measured, by name; left out where it could not be."""

    is_clean_twin: bool = False
    key: str = ""
    """Name of the run directory."""

    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Its options, with dotted keys."""

    status: str = "finished"
    commit: str | None = None
    versions: dict[str, Any] = dataclasses.field(default_factory=dict)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the run was trained on, with its SHA-256."""

    series: dict[str, Any] = dataclasses.field(default_factory=dict)
    """``loss`` (all steps, encoded), ``faults`` (first and last step of every
    burst) and ``left_out`` (the same, of steps whose own loss is that of a
    corrupted batch). Newer lines also ``global_norm`` and ``worst_ratio``
    (:func:`.targets.worst_ratios`), encoded likewise, and ``small_moments``
    (:func:`~adagc_lab.train.optimizers.small_moments`)."""

    timings: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Length of the run; 0 for what is no run."""
        return int(self.measures.get("steps", 0))

    @property
    def cpu_model(self) -> str:
        """Processor with its vectors, or :data:`RECORDED_BEFORE`."""
        return str(self.machine.get("processor", RECORDED_BEFORE))

    @property
    def losses(self) -> np.ndarray:
        """Of all steps, from :attr:`series`."""
        return decode_losses(self.series["loss"])

    @property
    def run_id(self) -> str:
        """Key, and the processor where it was recorded."""
        cpu = self.cpu_model
        return self.key if cpu == RECORDED_BEFORE else f"{self.key} on {cpu}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """What came out of one experiment, or of several with the same methods."""

    name: str
    title: str
    description: str = ""
    paper: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The paper's values: label -> method -> value."""

    skip_steps: int = 0
    all_runs: list[RunResult] = dataclasses.field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        """In the order of the grid; the first is the reference."""
        return [*dict.fromkeys(run.method for run in self.all_runs)]

    @property
    def runs(self) -> list[RunResult]:
        """All but the clean twins."""
        return [run for run in self.all_runs if not run.is_clean_twin]

    @property
    def seeds(self) -> list[int]:
        """Seeds of any method, in order."""
        return sorted({run.seed for run in self.runs})

    def runs_of(self, method: str) -> list[RunResult]:
        """The runs of a method, without clean twins."""
        return [run for run in self.runs if run.method == method]

    def values(self, method: str, measure: str) -> list[float | None]:
        """One value per seed, of its longest run; None where there is none."""
        by_seed = {
            run.seed: run.measures.get(measure)
            for run in longest(self.runs_of(method))
        }
        return [by_seed.get(seed) for seed in self.seeds]

    def has(self, measure: str) -> bool:
        """Whether any run has this measure."""
        return any(measure in run.measures for run in self.runs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetResult:
    """What came out of a target."""

    target: str
    title: str
    experiments: list[ExperimentResult] = dataclasses.field(
        default_factory=list
    )

    def experiment(self, name: str) -> ExperimentResult | None:
        """Return the experiment of that name, if it was run."""
        return next((e for e in self.experiments if e.name == name), None)


def longest(
    runs: Iterable[RunResult], measure: str | None = None
) -> list[RunResult]:
    """Every seed's longest run; of several one whose processor is recorded.

    With ``measure`` of those that have it.
    """
    best = {
        run.seed: run
        for run in reversed(sorted_runs(runs))
        if measure is None or measure in run.measures
    }
    return [best[seed] for seed in sorted(best)]


def sorted_runs(runs: Iterable[RunResult]) -> list[RunResult]:
    """Longest first; of several those whose processor was recorded."""

    def rank(run: RunResult) -> tuple[int, bool, str]:
        cpu = run.cpu_model
        return run.num_steps, cpu != RECORDED_BEFORE, cpu

    return sorted(runs, key=rank, reverse=True)


END_STEPS = 500
"""Last steps whose median loss is the loss at the end, spikes or not."""


Setting = tuple[str, int, int, str]
"""Config without clip and faults, seed, steps, processor."""


def clean_runs(results: Iterable[TargetResult]) -> dict[Setting, RunResult]:
    """Runs under GlobalGC without faults, ``lambda_abs`` 1 as the paper's."""
    return {
        _setting(run): run
        for result in results
        for experiment in result.experiments
        for run in experiment.all_runs
        if run.config.get("clip.name") == "global_norm"
        and run.config.get("clip.lambda_abs", 1.0) == 1.0
        and run.series
        and not run.series["faults"]
    }


def _setting(run: RunResult) -> Setting:
    left_out = ("faults", "train.output_dir")
    kept = {
        key: value
        for key, value in run.config.items()
        if key not in left_out and not key.startswith("clip.")
    }
    text = json.dumps(kept, sort_keys=True)
    return text, run.seed, run.num_steps, run.cpu_model


def with_derived(
    experiment: ExperimentResult,
    clean: Mapping[Setting, RunResult] = MappingProxyType({}),
) -> ExperimentResult:
    """Add what follows from stored losses, and the number of skipped steps.

    That is the spike mass, the median loss of the last :data:`END_STEPS` steps,
    the mean loss, and the area over GlobalGC's clean run: the experiment's own,
    or that of :func:`clean_runs` if it has none.
    """
    references = {
        (run.seed, run.cpu_model): run
        for run in experiment.all_runs
        if run.is_clean_twin and run.method == "GlobalGC" and run.series
    }
    runs = []
    for run in experiment.all_runs:
        found = {"skip_steps": float(experiment.skip_steps)}
        if run.series:
            reference = None
            if run.series["faults"]:
                reference = references.get((run.seed, run.cpu_model))
                if not references:
                    reference = clean.get(_setting(run))
            losses = reference.losses if reference else None
            found |= _derived(run, experiment.skip_steps, losses)
        if run.num_steps:
            run = dataclasses.replace(run, measures={**run.measures, **found})
        runs.append(run)
    return dataclasses.replace(experiment, all_runs=runs)


def _derived(
    run: RunResult, skip_steps: int, clean: np.ndarray | None
) -> dict[str, float]:
    loss, has_diverged = run.losses, run.status == "diverged"
    left_out = {
        step
        for first, last in run.series["left_out"]
        for step in range(first, last + 1)
    }
    judged = np.delete(loss, [*left_out.union(range(skip_steps))])
    mass = math.inf if has_diverged else spike_mass(judged)
    if has_diverged or not np.isfinite(judged).all():
        judged = np.full(1, np.inf)
    starts = [first for first, _ in run.series["faults"]]
    excess = paired_excess(loss, clean, starts, left_out, has_diverged)
    found = {
        "end_loss": float(np.median(judged[-END_STEPS:])),
        "mean_loss": float(np.mean(judged)),
    }
    found |= {} if mass is None else {"spike_mass": mass}
    return found | ({"excess_area_global": excess.area} if excess else {})


def merge_results(old: TargetResult, new: TargetResult) -> TargetResult:
    """All runs of both, the newer one of the same run; the newer timings."""
    experiments = []
    for experiment in new.experiments:
        known = {(run.run_id, run.is_clean_twin) for run in experiment.all_runs}
        earlier = old.experiment(experiment.name)
        if earlier and any(run.num_steps for run in experiment.all_runs):
            kept = [
                run
                for run in earlier.all_runs
                if (run.run_id, run.is_clean_twin) not in known
            ]
            experiment = dataclasses.replace(
                experiment, all_runs=[*kept, *experiment.all_runs]
            )
        experiments.append(experiment)
    names = {experiment.name for experiment in new.experiments}
    experiments += [e for e in old.experiments if e.name not in names]
    return dataclasses.replace(new, experiments=experiments)


def write_results(path: str | os.PathLike[str], result: TargetResult) -> Path:
    """Replace a file by the results, atomically."""
    lines: list[dict[str, Any]] = []
    for experiment in result.experiments:
        fields = dataclasses.asdict(experiment)
        runs = fields.pop("all_runs")
        configs = [run["config"] for run in runs]
        shared = {
            key: value
            for key, value in next(iter(configs), {}).items()
            if all(key in c and c[key] == value for c in configs)
        }
        lines.append({"kind": "experiment", **fields, "config": shared})
        for run in runs:
            for key in shared:
                del run["config"][key]
            filled = {
                key: value
                for key, value in run.items()
                if value or key in ("method", "seed", "measures")
            }
            lines.append({"kind": "cell", **filled})
    text = "".join(map(as_json, lines))
    head = {
        "kind": "target",
        "target": result.target,
        "title": result.title,
        _CHECKSUM: hashlib.sha256(text.encode()).hexdigest(),
    }
    return atomic_write(path, as_json(sealed(head)) + text)


def read_results(path: str | os.PathLike[str]) -> TargetResult:
    """Read results; a ValueError names a line that is damaged or changed."""
    result: TargetResult | None = None
    shared: dict[str, Any] = {}
    content = Path(path).read_bytes()
    for number, line in enumerate(content.splitlines(), 1):
        try:
            fields = json.loads(line)
            kind = fields.pop("kind")
            if kind == "target":
                _check_checksum({"kind": kind, **fields}, content)
                for name in (_CHECKSUM, SEAL):
                    fields.pop(name, None)
                result = TargetResult(**fields)
            elif kind == "experiment" and result is not None:
                shared = fields.pop("config", {})
                result.experiments.append(ExperimentResult(**fields))
            elif kind == "cell" and result is not None:
                measures = fields["measures"]
                fields["measures"] = {n: float(measures[n]) for n in measures}
                fields["config"] = {**shared, **fields.get("config", {})}
                result.experiments[-1].all_runs.append(RunResult(**fields))
            else:
                raise ValueError(f"a line of kind {kind!r} out of place")
        except (
            *(ValueError, AttributeError, LookupError, TypeError),
            *(OverflowError, RecursionError),
        ) as error:
            what = error if isinstance(error, ValueError) else repr(error)
            raise ValueError(f"{path}, line {number}: {what}") from error
    if result is None:
        raise ValueError(f"{path} is empty")
    return result


def _check_checksum(head: dict[str, Any], content: bytes) -> None:
    """Refuse results that were changed, unless the checksum was removed."""
    if _CHECKSUM not in head and SEAL not in head:
        return
    lines = content.partition(b"\n")[2]
    check_seal(head)
    if head.get(_CHECKSUM) != hashlib.sha256(lines).hexdigest():
        raise ValueError(
            "the lines below have another SHA-256 than when they were "
            f"written; if the change is meant, remove {_CHECKSUM} and {SEAL}"
        )
