# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""New results beside committed ones: no run is lost, none stands twice."""

from __future__ import annotations

import dataclasses

from paddle_adagc.lab.reproduce.results import (
    CellResult,
    ExperimentResult,
    TargetResult,
)


def merge_results(old: TargetResult, new: TargetResult) -> TargetResult:
    """All runs of both; of the same run on the same processor the newer one.

    Timings are replaced, as they are of one sitting.

    Args:
        old: Committed.
        new: Of the same target.
    """
    experiments = []
    for experiment in new.experiments:
        earlier = old.experiment(experiment.name)
        experiments.append(
            _merged(earlier, experiment) if earlier else experiment
        )
    names = {experiment.name for experiment in new.experiments}
    experiments += [e for e in old.experiments if e.name not in names]
    return dataclasses.replace(new, experiments=experiments)


def _merged(old: ExperimentResult, new: ExperimentResult) -> ExperimentResult:
    if not any(cell.num_steps for cell in new.cells):
        return new
    known = {_identity(cell) for cell in new.cells}
    kept = [cell for cell in old.cells if _identity(cell) not in known]
    common = {
        key: value
        for key, value in new.config.items()
        if key in old.config and old.config[key] == value
    }
    return dataclasses.replace(
        new,
        config=common,
        cells=[
            *(_with_own(cell, old, common) for cell in kept),
            *(_with_own(cell, new, common) for cell in new.cells),
        ],
    )


def _identity(cell: CellResult) -> tuple[str, bool]:
    return cell.run_id, cell.is_clean_twin


def _with_own(
    cell: CellResult, experiment: ExperimentResult, common: dict[str, object]
) -> CellResult:
    """Return the cell with what is no longer common to all."""
    full = {**experiment.config, **cell.config}
    own = {k: v for k, v in full.items() if k not in common}
    return dataclasses.replace(cell, config=own)
