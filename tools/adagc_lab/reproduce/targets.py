# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the grids of targets to finished runs, reports, results and verdicts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adagc_lab.committed import SINGLE, rounded
from adagc_lab.record.files import RunRecord
from adagc_lab.report.experiment import Experiment, flatten
from adagc_lab.report.html import write_picture, write_report
from adagc_lab.report.judged import (
    JudgedRun,
    judge_runs,
    judged_steps,
)
from adagc_lab.report.measures import stored_numbers
from adagc_lab.report.tables import headline
from adagc_lab.reproduce.claims import Claim, targets_of
from adagc_lab.reproduce.grid import (
    ExperimentConfig,
    PlannedRun,
    digest,
    load_target,
    make_runs,
)
from adagc_lab.reproduce.packed import decode_losses, encode_losses
from adagc_lab.reproduce.pool import Catalogue, PooledResults
from adagc_lab.reproduce.results import (
    RESULTS,
    ExperimentResult,
    RunResult,
    TargetResult,
    merge_results,
    read_results,
    write_results,
)
from adagc_lab.reproduce.running import run_all
from adagc_lab.reproduce.tables import target_markdown, verdicts_markdown
from adagc_lab.reproduce.timing import gpu_hours, run_timing
from adagc_lab.reproduce.verdicts import Verdict, judge
from paddle_adagc.checks import check_integer
from paddle_adagc.files import atomic_write
from paddle_adagc.stability.spike_score import group_events

STORE = "cells"
"""Folder of all run directories, each named after its config."""

REPORT = "report.html"
TABLES = "tables.md"
_SEEDS = ("train.seed", "data.seed")
_FEW_SEEDS = """\
Fewer than 3 seeds are an illustration, not a result: docs/results.md has more.\
"""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A target that has been written."""

    directory: Path
    result: TargetResult
    verdicts: list[Verdict]
    text: str
    """What to print: what was seen, or the verdicts with their tables."""

    report: Path | None
    """The HTML report; None where nothing was trained."""


def reproduce(
    grid_files: Sequence[Path],
    output_dir: Path,
    *,
    max_steps: int | None = None,
    claims: Sequence[Claim] = (),
    committed: Mapping[str, TargetResult] | None = None,
    num_jobs: int = 1,
    only: str | None = None,
) -> list[Finished]:
    """Run what is missing of targets, and write every target's report.

    ``only`` names the one experiment to run; the results of the others stay.

    A target is named after its grid's file. Claims of other targets are left
    alone; verdicts take the runs of the ``committed`` results, too.
    """
    num_jobs = check_integer("num_jobs", num_jobs, 1)
    files = {path.stem: path for path in grid_files}
    targets = {
        name: load_target(path).only(only) for name, path in files.items()
    }
    store, timed = output_dir / STORE, output_dir / "timings"
    grids = {
        name: [
            (
                e,
                [
                    run
                    for run in make_runs(
                        e, files[name], store, max_steps=max_steps
                    )
                    if run.method not in target.former
                ],
            )
            for e in target.experiments
        ]
        for name, target in targets.items()
    }
    # Nothing else runs while clips are timed.
    timings = {
        name: [
            *(run_timing(t, files[name], timed) for t in target.timings),
            *([gpu_hours()] if target.gpu_hours else []),
        ]
        for name, target in targets.items()
    }
    number, total = 0, sum(map(len, grids.values()))
    for name, grid in grids.items():
        for config, runs in grid:
            number += 1
            print(f"{number} of {total}: {config.title}", flush=True)
            run_all(runs, num_jobs)
            found = load_experiment(config, runs, output_dir / name)
            print(*(f"  {x}" for x in headline(found)), sep="\n", flush=True)
            drawn = output_dir / name / f"{config.name}.svg"
            if write_picture(drawn, found):
                print(f"  picture: {drawn}", flush=True)
    known, catalogue = dict(committed or {}), Catalogue(files)
    finished = []
    for name, grid in grids.items():
        directory = output_dir / name
        shown = [load_experiment(*planned, directory) for planned in grid]
        results = [
            summarise_experiment(experiment, config.name, config.paper)
            for experiment, (config, _) in zip(shown, grid, strict=True)
        ]
        result = TargetResult(
            target=name,
            title=targets[name].title,
            experiments=[*results, *timings[name]],
        )
        if only and (directory / RESULTS).exists():
            earlier_runs = read_results(directory / RESULTS)
            result = merge_results(earlier_runs, result)
        write_results(directory / RESULTS, result)
        earlier = known.get(name)
        known[name] = merge_results(earlier, result) if earlier else result
        own = [c for c in claims if c.target == name]
        own = [c for c in own if {*targets_of([c])} <= {*files}]
        verdicts = judge(own, PooledResults(catalogue, known))
        finished.append(_write(directory, result, shown, verdicts))
    return finished


def _write(
    directory: Path,
    result: TargetResult,
    shown: list[Experiment],
    verdicts: list[Verdict],
) -> Finished:
    """Write ``tables.md`` and, if anything was trained, ``report.html``."""
    text = target_markdown(result)
    if verdicts:
        text += f"\n## Claims\n\n{verdicts_markdown(verdicts)}"
    atomic_write(directory / TABLES, text)
    if not verdicts and len(shown) == len(result.experiments):
        is_few = any(len(experiment.seeds) < 3 for experiment in shown)
        text = _FEW_SEEDS if is_few else ""
    report = directory / REPORT
    report.unlink(missing_ok=True)
    if not shown:
        return Finished(directory, result, verdicts, text, None)
    claims = [
        (v.claim.where, v.claim.claim, v.label, v.evidence.replace("\n", "; "))
        for v in verdicts
    ]
    write_report(report, result.title, shown, claims=claims)
    return Finished(directory, result, verdicts, text, report)


def load_experiment(
    config: ExperimentConfig, runs: Sequence[PlannedRun], directory: Path
) -> Experiment:
    """Load finished runs, each linked to by a name that people can read."""
    folder = directory / config.name
    longest = max(run.config.train.max_steps for run in runs)
    records: dict[bool, dict[str, list[RunRecord]]] = {False: {}, True: {}}
    for run in runs:
        record = RunRecord.load(_linked(run, folder))
        of_method = records[run.is_clean_twin].setdefault(run.method, [])
        of_method.append(record)
    return Experiment(
        title=config.title,
        description=config.description,
        runs=records[False],
        clean_runs=records[True],
        skip_steps=min(config.skip_steps, longest // 10),
        windows=(1000, 200) if longest > 1000 else (200,),
        directory=folder,
        dynamics_tensor=config.dynamics,
    )


def _linked(run: PlannedRun, folder: Path) -> Path:
    """Link to the run directory by a name that people can read."""
    link = folder / run.name
    folder.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        raise FileExistsError(
            f"{link} is in the way of a link to {run.directory}: remove it, "
            "or choose another --output"
        )
    link.symlink_to(os.path.relpath(run.directory, folder))
    return link


def summarise_experiment(
    experiment: Experiment,
    name: str,
    paper: dict[str, dict[str, float]] | None = None,
) -> ExperimentResult:
    """Measure runs and clean twins by the losses as they are stored."""
    rows: list[tuple[str, JudgedRun, bool]] = []
    for method, runs in judge_runs(experiment).items():
        for run in runs:
            twin = run.clean and _as_stored(run.clean)
            run = dataclasses.replace(run, run=_as_stored(run.run), clean=twin)
            rows.append((method, run, False))
        rows += [
            (method, JudgedRun(run.clean, experiment), True)
            for _, run, _ in rows[-len(runs) :]
            if run.clean
        ]
    return ExperimentResult(
        name=name,
        title=experiment.title,
        description=experiment.description,
        paper=paper or {},
        skip_steps=experiment.skip_steps,
        all_runs=[_run_result(*row) for row in rows],
    )


def _run_result(
    method: str, judged: JudgedRun, is_clean_twin: bool
) -> RunResult:
    """Return what a results file keeps of a run."""
    run, facts = judged.run, judged.run.run
    options = flatten(judged.config)
    return RunResult(
        method=method,
        seed=facts["seed"],
        is_clean_twin=is_clean_twin,
        key=digest(judged.config),
        config={k: v for k, v in options.items() if k not in _SEEDS},
        status=str(facts.get("status", "unknown")),
        commit=facts.get("commit"),
        versions=facts.get("versions", {}),
        machine=facts.get("machine", {}),
        data=facts.get("data", {}),
        series=_series(run),
        timings={
            key: round(facts[key], 2)
            for key in ("wall_seconds", "elapsed_seconds")
            if facts.get(key) is not None
        },
        measures={
            name: rounded(value, SINGLE)
            for name, value in stored_numbers(judged).items()
        },
    )


def _as_stored(run: RunRecord) -> RunRecord:
    """Return the run with the losses that come back from a results file."""
    loss = decode_losses(encode_losses(run.loss))
    return dataclasses.replace(run, metrics={**run.metrics, "loss": loss})


def worst_ratios(norms: np.ndarray, beta: float = 0.99) -> np.ndarray:
    """Largest norm of a step over the tensor's moving average before it.

    ``norms``: ``[num_steps, num_tensors]``. 1 at the first step; NaN where no
    tensor has both.
    """
    average, found = norms[0].astype(np.float64), np.ones(len(norms))
    for step, own in enumerate(norms[1:].astype(np.float64), 1):
        is_known = np.isfinite(own) & (own > 0)
        has_both = is_known & (average > 0)
        ratios = own[has_both] / average[has_both]
        found[step] = ratios.max() if len(ratios) else np.nan
        new = np.where(average > 0, beta * average + (1 - beta) * own, own)
        average = np.where(is_known, new, average)
    return found


def _series(run: RunRecord) -> dict[str, Any]:
    left_out = set(range(run.num_steps)) - set(judged_steps(run, 0).tolist())
    norms = run.tensors.get("norm", np.zeros((0, 0)))
    known: dict[str, Any] = {}
    if norms.size and not np.isnan(norms).all():
        with np.errstate(all="ignore"):
            total = np.sqrt(np.nansum(norms.astype(np.float64) ** 2, axis=1))
            ratios = worst_ratios(norms)
        known = {
            "global_norm": encode_losses(total),
            "worst_ratio": encode_losses(ratios),
        }
    if run.run.get("small_moments"):
        known["small_moments"] = {
            kind: rounded(share, SINGLE)
            for kind, share in run.run["small_moments"].items()
        }
    return {
        **known,
        "loss": encode_losses(run.loss),
        "faults": [*map(list, group_events(sorted(run.faults), 1))],
        "left_out": [*map(list, group_events(sorted(left_out), 1))],
    }
