# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How often the monitor's loss alarm is false, and what it sees.

``python -m paddle_adagc.lab.reproduce.alarms results/ernie.jsonl recipe``
counts alarms in the committed losses of an experiment, in runs without a fault
and without a spike, and adds jumps of known height to single steps of the same
losses, by threshold. An experiment in low noise is no measure of false alarms:
its runs become unstable by themselves.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.reproduce.series import decode_losses
from paddle_adagc.stability.alarms import WATCHES, Monitor
from paddle_adagc.stability.spike_score import spike_score

SIGMAS = (4.0, 6.0, 8.0, 10.0, 15.0)
JUMPS = (0.2, 0.5, 1.0, 2.0)
"""In nat."""

_EVERY = 97
"""Steps from one added jump to the next."""


def quiet_losses(path: Path, experiment: str) -> list[np.ndarray]:
    """Read the losses of an experiment's runs, each ``[num_steps]``.

    Runs with a fault, those that diverged, and those with a spike by the
    paper's score are left out.
    """
    found = []
    current = None
    for row in map(json.loads, path.read_text().splitlines()):
        if row["kind"] == "experiment":
            current = row["name"]
        series = row.get("series")
        if current != experiment or series is None or series["faults"]:
            continue
        losses = decode_losses(series["loss"])
        if np.isfinite(losses).all() and not spike_score(losses).num_spikes:
            found.append(losses)
    return found


def count_alarms(losses: np.ndarray, sigma: float) -> list[int]:
    """Return the first steps of the loss' alarms at a threshold."""
    watch = dataclasses.replace(WATCHES["loss"], sigma=sigma)
    rows = ((step, {"loss": x}) for step, x in enumerate(losses.tolist()))
    return [alarm.start for alarm in Monitor({"loss": watch}).update(rows)]


def share_seen(losses: np.ndarray, sigma: float, jump: float) -> float:
    """Return the share of jumps, each of a single step, that are seen."""
    steps = np.arange(WATCHES["loss"].window, len(losses), _EVERY)
    raised = losses.copy()
    raised[steps] += jump
    return len({*steps} & {*count_alarms(raised, sigma)}) / len(steps)


def table(series: Sequence[np.ndarray]) -> str:
    """Return false alarms and jumps seen by threshold, as Markdown."""
    rows = []
    for sigma in SIGMAS:
        false = sum(len(count_alarms(losses, sigma)) for losses in series)
        seen = [
            np.mean([share_seen(losses, sigma, jump) for losses in series])
            for jump in JUMPS
        ]
        rows.append([f"{sigma:g}", f"{false}", *(f"{x:.0%}" for x in seen)])
    heads = [f"+{jump:g} nat seen" for jump in JUMPS]
    return markdown_table(["sigma", "false alarms", *heads], rows)


def main(arguments: Sequence[str]) -> None:
    """Print the table for a result file and one of its experiments."""
    path, experiment = arguments
    series = quiet_losses(Path(path), experiment)
    num_steps = sum(map(len, series))
    print(f"{len(series)} runs, {num_steps:,} steps\n")
    print(table(series))


if __name__ == "__main__":
    main(sys.argv[1:])
