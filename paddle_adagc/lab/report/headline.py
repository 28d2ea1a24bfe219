# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What came out of an experiment, a sentence per method."""

from __future__ import annotations

from collections.abc import Sequence

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.judged import JudgedRun
from paddle_adagc.lab.report.measures import final_loss


def headline(experiment: Experiment) -> list[str]:
    """Count the spikes of each method, and measure the damage.

    Returns:
        For example ``"GlobalGC: 10 spikes in 440 judged steps, worst loss jump
        0.353 nat"``.
    """
    return [
        f"{method}: {_spikes(judged)}{_jump(judged)}{_excess(judged)}"
        for method, runs in experiment.runs.items()
        if (judged := _judged(experiment, method, runs))
    ]


def _judged(
    experiment: Experiment, method: str, runs: Sequence[RunRecord]
) -> list[JudgedRun]:
    clean = (experiment.clean_runs or {}).get(method, [None] * len(runs))
    pairs = zip(runs, clean, strict=True)
    return [JudgedRun(run, experiment, other) for run, other in pairs]


def _spikes(runs: Sequence[JudgedRun]) -> str:
    found = [run.score(run.experiment.windows[0]) for run in runs]
    scores = [score for score in found if score is not None]
    if not scores:
        return "no step is judged: too few came before"
    num_spikes = sum(score.num_spikes for score in scores)
    num_judged = sum(score.num_judged for score in scores)
    spikes = f"{num_spikes or 'no'} spike{'s' * (num_spikes != 1)}"
    return f"{spikes} in {num_judged:,} judged steps"


def _jump(runs: Sequence[JudgedRun]) -> str:
    jumps = [run.jump for run in runs if run.jump is not None]
    if not jumps:
        return ""
    worst = max(jumps, key=lambda jump: jump.height)
    return f", worst loss jump {worst.height:.3g} nat at step {worst.step:,}"


def _excess(runs: Sequence[JudgedRun]) -> str:
    areas = [run.excess.area for run in runs if run.excess is not None]
    if not areas:
        return ""
    mean = sum(areas) / len(areas)
    return f", {mean:,.0f} nat × steps above the same run without faults"


def conclusion(experiments: Sequence[Experiment]) -> list[str]:
    """Say in one sentence per experiment what the loss did.

    Returns:
        For example ``"Llama proxy: worst loss jump 3.2 nat under GlobalGC, 0.3
        nat under AdaGC; final loss 1.2 nat under GlobalGC, 1.1 nat under
        AdaGC."`` The last sentence says what fewer than 3 seeds are worth.
    """
    sentences = [_sentence(experiment) for experiment in experiments]
    if any(len(experiment.seeds) < 3 for experiment in experiments):
        sentences.append(
            "Fewer than 3 seeds are an illustration, not a result: "
            "docs/results.md has 8."
        )
    return sentences


def _sentence(experiment: Experiment) -> str:
    jumps, losses = [], []
    for method, runs in experiment.runs.items():
        judged = _judged(experiment, method, runs)
        heights = [run.jump.height for run in judged if run.jump is not None]
        if heights:
            jumps.append(f"{max(heights):.2g} nat under {method}")
        final = sum(map(final_loss, judged)) / len(judged)
        losses.append(f"{final:.3g} nat under {method}")
    seen = [f"final loss {', '.join(losses)}"]
    if jumps:
        seen.insert(0, f"worst loss jump {', '.join(jumps)}")
    return f"{experiment.title}: {'; '.join(seen)}."
