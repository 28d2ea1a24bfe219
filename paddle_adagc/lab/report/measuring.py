# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure runs: the numbers of the tables and of the stored results."""

from __future__ import annotations

import itertools

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.formatting import Value
from paddle_adagc.lab.report.judged import JudgedRun
from paddle_adagc.lab.report.measure import Measure
from paddle_adagc.lab.report.measures import RETRIEVAL, run_measures


def measure_experiment(
    experiment: Experiment,
) -> dict[str, list[dict[str, Value]]]:
    """Measure every run: method -> one ``{name: value}`` per seed."""
    return {
        method: [
            measure_run(run, experiment, clean)
            for run, clean in zip(
                runs,
                (experiment.clean_runs or {}).get(method)
                or itertools.repeat(None, len(runs)),
                strict=True,
            )
        ]
        for method, runs in experiment.runs.items()
    }


def measure_run(
    run: RunRecord, experiment: Experiment, clean: RunRecord | None = None
) -> dict[str, Value]:
    """Measure a run with the settings of ``experiment``, by name.

    Args:
        run: The run.
        experiment: Gives the steps to skip and the windows.
        clean: The same run without faults, for the paired excess.
    """
    judged = JudgedRun(run, experiment, clean)
    return {
        measure.name: measure.compute(judged)
        for measure in experiment_measures(experiment)
    }


def stored_numbers(
    run: RunRecord, experiment: Experiment, clean: RunRecord | None = None
) -> dict[str, float]:
    """Return the numbers of a run that results keep, by name.

    Spike counts are left out where no step could be judged, the validation
    loss where training memorised a few fixed sequences. A run that diverged
    has at least one spike, an infinite validation loss and an accuracy of
    -inf.
    """
    judged = JudgedRun(run, experiment, clean)
    values = {
        measure.name: measure.compute(judged)
        for measure in experiment_measures(experiment)
        if measure.stored
    }
    return {n: float(v) for n, v in values.items() if v is not None}


def experiment_measures(experiment: Experiment) -> list[Measure]:
    """List the measures of an experiment, in the order of the table."""
    accuracies = {
        name
        for runs in experiment.runs.values()
        for run in runs
        for name in run.metrics
        if name.endswith("_accuracy")
    }
    return run_measures(
        experiment.windows,
        experiment.last_steps,
        sorted(accuracies | {RETRIEVAL}),
    )
