# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From finished runs to the lines of a results file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.config_facts import flatten
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.judged import judged_steps
from paddle_adagc.lab.report.measuring import stored_numbers
from paddle_adagc.lab.reproduce.grid import digest
from paddle_adagc.lab.reproduce.results import CellResult, ExperimentResult
from paddle_adagc.lab.reproduce.series import decode_losses, encode_losses
from paddle_adagc.stability.spike_score import group_events

_PER_RUN = ("train.seed", "data.seed")


def summarise_experiment(
    experiment: Experiment,
    name: str,
    paper: dict[str, dict[str, float]] | None = None,
) -> ExperimentResult:
    """Results of an experiment's runs and of their clean twins.

    Measured are the losses as they are stored, so that a line's spikes follow
    from its own series.
    """
    rows: list[tuple[str, RunRecord, RunRecord | None, bool]] = []
    for method, runs in experiment.runs.items():
        twins = (experiment.clean_runs or {}).get(method, [])
        stored, clean = map(_as_stored, runs), [*map(_as_stored, twins)]
        rows += [
            (method, run, clean[index] if clean else None, False)
            for index, run in enumerate(stored)
        ]
        rows += [(method, twin, None, True) for twin in clean]
    configs = [flatten(run.run.get("config", {})) for _, run, _, _ in rows]
    common = {
        key: value
        for key, value in configs[0].items()
        if key not in _PER_RUN
        and all(key in other and other[key] == value for other in configs)
    }
    cells = []
    for (method, run, clean_run, is_twin), config in zip(
        rows, configs, strict=True
    ):
        own = {k: v for k, v in config.items() if k not in common}
        numbers = stored_numbers(run, experiment, clean_run)
        cells.append(_cell(method, run, numbers, is_twin, own))
    return ExperimentResult(
        name=name,
        title=experiment.title,
        description=experiment.description,
        config=common,
        paper=paper or {},
        skip_steps=experiment.skip_steps,
        cells=cells,
    )


def _cell(
    method: str,
    run: RunRecord,
    numbers: Mapping[str, float],
    is_clean_twin: bool,
    config: Mapping[str, Any],
) -> CellResult:
    facts = run.run
    timings = {
        key: facts[key]
        for key in ("wall_seconds", "elapsed_seconds")
        if facts.get(key) is not None
    }
    return CellResult(
        method=method,
        seed=facts["seed"],
        is_clean_twin=is_clean_twin,
        key=digest(facts.get("config", {})),
        config={k: v for k, v in config.items() if k not in _PER_RUN},
        status=str(facts.get("status", "unknown")),
        commit=facts.get("commit"),
        versions=facts.get("versions", {}),
        machine=facts.get("machine", {}),
        data=facts.get("data", {}),
        series=_series(run),
        timings={key: round(value, 2) for key, value in timings.items()},
        measures={
            name: float(f"{value:.7g}") for name, value in numbers.items()
        },
    )


def _as_stored(run: RunRecord) -> RunRecord:
    """Return the run with the losses that come back from a results file."""
    loss = decode_losses(encode_losses(run.loss))
    return dataclasses.replace(run, metrics={**run.metrics, "loss": loss})


def _series(run: RunRecord) -> dict[str, Any]:
    left_out = set(range(run.num_steps)) - set(judged_steps(run, 0).tolist())
    return {
        "loss": encode_losses(run.loss),
        "faults": [*map(list, group_events(sorted(run.faults), 1))],
        "left_out": [*map(list, group_events(sorted(left_out), 1))],
    }
