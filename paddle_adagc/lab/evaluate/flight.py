# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the flight recorder of a run has kept, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.record.flight import FOLDER, Event, load_event
from paddle_adagc.lab.train.console import short_name

NUM_STEPS = 10
NUM_TENSORS = 10


def flight_text(directory: Path, step: int | None = None) -> str:
    """Describe a run's newest event, the steps before it, and one of them.

    Args:
        directory: Of the run.
        step: The step to show, and the last of those before it; None: the last
            one that was finished.

    Raises:
        ValueError: Nothing was recorded, or not this step; or a file is
            damaged.
    """
    event = load_event(directory, step)
    if event is None:
        what = f"no event with step {step}" if step is not None else "no event"
        raise ValueError(
            f"{directory / FOLDER} holds {what}: a run writes it at an alarm, "
            "a signal or an exception, unless monitor.flight_steps is 0"
        )
    place = event.place(step)
    steps = event.first.step.tolist()
    lines = [
        f"{event.name}: {event.first.reason}",
        f"steps {steps[0]} to {steps[-1]}; ranks: {len(event.ranks)}",
        "",
        _steps(event, place),
        f"step {steps[place]}:",
        tensor_table(event.tensors(steps[place])),
    ]
    return "\n".join(lines)


def tensor_table(tensors: Mapping[str, tuple[float, float, float]]) -> str:
    """Return the tensors with the largest norm over gamma, else norm.

    Args:
        tensors: Norm, h, and gamma after the step, by key. There are none
            in the steps in which a :class:`MeasuredClip` only clips.
    """
    if not tensors:
        return (
            "No tensor was measured at this step: Paddle's own clips are "
            "measured in the steps that are logged or saved."
        )

    def badness(row: tuple[float, float, float]) -> float:
        norm, _, gamma = row
        ratio = norm / gamma if 0 < gamma < math.inf else norm
        return ratio if math.isfinite(ratio) else math.inf

    worst = sorted(tensors.items(), key=lambda item: -badness(item[1]))
    rows = [
        [short_name(key), *(f"{value:.3g}" for value in row)]
        for key, row in worst[:NUM_TENSORS]
    ]
    return markdown_table(["tensor", "norm", "h", "gamma"], rows, pad=True)


def _steps(event: Event, last: int) -> str:
    flight = event.first
    rows = []
    for i in range(max(0, last + 1 - NUM_STEPS), last + 1):
        step = int(flight.step[i])
        tensors = event.tensors(step).values()
        norms = [norm for norm, _, _ in tensors if math.isfinite(norm)]
        factors = [h for _, h, _ in tensors if not math.isnan(h)]
        first, stop = flight.samples[i]
        rows.append(
            [
                str(step),
                f"{event.loss(step):.4g}",
                f"{math.hypot(*norms):.4g}" if norms else "–",
                f"{min(factors):.3g}" if factors else "–",
                f"{first} to {stop - 1}",
            ]
        )
    return markdown_table(
        ["step", "loss", "gradient norm", "lowest h", "samples"], rows, pad=True
    )
