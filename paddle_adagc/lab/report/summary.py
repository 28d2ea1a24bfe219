# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Plain-language sentences that say what each method did, from its numbers."""

from __future__ import annotations

import math
import statistics

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.formatting import format_list, format_spread
from paddle_adagc.lab.report.measures import EXCESS_THRESHOLDS, RunMeasures


def summarise(
    experiment: Experiment, measures: dict[str, list[RunMeasures]]
) -> dict[str, str]:
    """Say in a few sentences what each method did.

    Args:
        experiment: The runs.
        measures: ``measure_experiment(experiment)``.

    Returns:
        By method, sentences without the method's name.
    """
    reference = experiment.reference
    texts = {}
    for method, runs in measures.items():
        sentences = [
            _spikes(runs, experiment.windows[0]),
            _worst(runs),
            _excess(runs),
            _losses(runs),
        ]
        if method != reference:
            sentences.append(_difference(runs, measures[reference], reference))
        texts[method] = " ".join(filter(None, sentences))
    return texts


def extent(experiment: Experiment) -> str:
    """Say how many seeds and steps there are: ``"3 seeds (1, 2, 3), …"``."""
    seeds = ", ".join(str(s) for s in experiment.seeds if s is not None)
    count = len(experiment.seeds)
    text = f"Seed {seeds}" if count == 1 and seeds else _plural(count, "seed")
    if count > 1 and seeds:
        text += f" ({seeds})"
    steps = [r.num_steps for runs in experiment.runs.values() for r in runs]
    fewest = f"{min(steps):,} to " if min(steps) < max(steps) else ""
    return (
        f"{text}, {fewest}{max(steps):,} steps a run; the first "
        f"{experiment.skip_steps:,} steps are not judged."
    )


def _spikes(runs: list[RunMeasures], window: int) -> str:
    scores = [run.scores[window] for run in runs]
    counts = [score.num_spikes for score in scores]
    if not any(counts):
        if all(s.num_unjudged >= s.num_values for s in scores):
            return f"The run is too short for a window of {window:,} steps."
        return "No loss spike."
    if len(runs) == 1:
        return (
            f"{_plural(counts[0], 'loss spike')} in "
            f"{_plural(scores[0].num_events, 'event')}."
        )
    events = format_list([score.num_events for score in scores])
    return (
        f"{format_list(counts)} loss spikes (one count per seed) in {events} "
        "events."
    )


def _worst(runs: list[RunMeasures]) -> str:
    diverged = sum(run.status == "diverged" for run in runs)
    jumps = [run.jump for run in runs if run.jump is not None]
    worst = max(jumps, key=lambda jump: jump.height, default=None)
    if diverged:
        where = "" if len(runs) == 1 else f" in {diverged} of {len(runs)} seeds"
        return f"It diverged{where}."
    if worst is None:
        return ""
    if math.isinf(worst.height):
        return f"Its loss was not finite at step {worst.step:,}."
    if not any(s.num_spikes for run in runs for s in run.scores.values()):
        return (
            f"Its loss never rose more than {worst.height:.2f} nat above its "
            "recent level."
        )
    if worst.recovery_steps is None:
        after = "and it did not recover"
    else:
        after = f"gone after {_plural(worst.recovery_steps, 'step')}"
    return f"Its worst loss jump was {worst.height:.2f} nat, {after}."


def _excess(runs: list[RunMeasures]) -> str:
    excesses = [run.excess for run in runs if run.excess is not None]
    if not excesses:
        return ""
    worst = max(excess.worst for excess in excesses)
    threshold = max(EXCESS_THRESHOLDS)
    events = [excess.num_events[threshold] for excess in excesses]
    if not any(events):
        return (
            "The faults never raised its loss by more than "
            f"{worst:.2f} nat over the same run without faults."
        )
    times = (
        _plural(events[0], "event")
        if len(events) == 1
        else f"{format_list(events)} events"
    )
    height = (
        "without bound" if math.isinf(worst) else f"by up to {worst:.2f} nat"
    )
    return (
        f"The faults raised its loss by more than {threshold} nat over the "
        f"same run without faults in {times}, {height}."
    )


def _losses(runs: list[RunMeasures]) -> str:
    finals = [run.final_loss for run in runs]
    if not any(math.isfinite(loss) for loss in finals):
        return ""
    text = f"Training loss at the end {format_spread(finals, '.4f')} nat"
    validation = [run.validation_loss for run in runs]
    if any(loss is not None for loss in validation):
        text += f", validation loss {format_spread(validation, '.4f')} nat"
    return f"{text}."


def _difference(
    runs: list[RunMeasures], others: list[RunMeasures], reference: str
) -> str:
    """Compare the final training losses, seed by seed."""
    differences = [
        run.final_loss - other.final_loss
        for run, other in zip(runs, others, strict=True)
    ]
    mean = statistics.fmean(differences)
    if not math.isfinite(mean):
        return ""
    if abs(mean) < 5e-5:
        return f"The training loss is that of {reference}."
    direction = "lower" if mean < 0 else "higher"
    return (
        f"That training loss is {abs(mean):.4f} nat {direction} than "
        f"{reference}'s."
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
