# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the numbers of a small experiment do and do not mean."""

from __future__ import annotations

from paddle_adagc.lab.report.experiment import Experiment

GENERAL = (
    "The step of a spike is chaotic: the smallest change moves it. Fewer than "
    "3 seeds or 2,500 steps show nothing; a verdict of tools/reproduce.py "
    "needs 8 paired seeds.",
    "The spike score compares a loss with the spread of the window before it. "
    "On a noisy loss ten standard deviations can be more than a nat (the row "
    "“10 σ” says how much): damage below that scores 0.",
    "One event widens the spread for a whole window and can hide the next one, "
    "and one event can count as many neighbouring spikes. Therefore events and "
    "the robust count are given, too.",
    "Small models on a CPU stand in for pretraining: they show how a clip "
    "reacts to an outlier, not what a large run gains. Their gradient norm is "
    "closer to the absolute threshold than in large runs, where the threshold "
    "leaves more headroom.",
    "Clip time is that of one machine and this model size, where fixed "
    "costs per operation dominate.",
)


def reading_notes(experiments: list[Experiment]) -> list[str]:
    """Return the notes that apply to ``experiments``."""
    notes = list(GENERAL)
    skipped = sorted({e.skip_steps for e in experiments})
    notes.insert(
        0,
        f"The first {' or '.join(f'{s:,}' for s in skipped)} steps, the "
        "initial descent, are not judged: its steep fall would widen the "
        "spread of the first windows to several nats.",
    )
    if any(e.has_faults for e in experiments):
        notes.append(
            "The loss of a corrupted batch itself is high for any model. It is "
            "left out of all measures; what counts is the damage afterwards."
        )
    if any(e.clean_runs for e in experiments):
        notes.append(
            "Paired excess is the difference to a run of the same method with "
            "the same seed and batches but no faults. It shows lasting damage "
            "that the spike score misses."
        )
    if min(len(e.seeds) for e in experiments) < 3:
        notes.append(
            "This report has fewer than 3 seeds in at least one experiment: "
            "it illustrates and decides nothing."
        )
    return notes


def extent(experiment: Experiment) -> str:
    """Say how many seeds and steps there are: ``"3 seeds (1, 2, 3), …"``."""
    seeds = ", ".join(str(s) for s in experiment.seeds if s is not None)
    count = len(experiment.seeds)
    text = (
        f"Seed {seeds}"
        if count == 1 and seeds
        else (f"{count:,} seed" + "s" * (count > 1))
    )
    if count > 1 and seeds:
        text += f" ({seeds})"
    steps = [r.num_steps for runs in experiment.runs.values() for r in runs]
    fewest = f"{min(steps):,} to " if min(steps) < max(steps) else ""
    return (
        f"{text}, {fewest}{max(steps):,} steps a run; the first "
        f"{experiment.skip_steps:,} steps are not judged."
    )
