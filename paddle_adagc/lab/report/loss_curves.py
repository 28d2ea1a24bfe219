# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses of all seeds of two methods, as text like the forest plots."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np

from paddle_adagc.lab.report.forest import framed

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 280, 44, 736, 40, 36
"""Pixels."""

BIN = 10
"""Steps of which the largest loss is drawn."""

_COLORS = ("#d55e00", "var(--mark)")


def loss_curves_svg(
    title: str, losses: Mapping[str, Sequence[np.ndarray]]
) -> str:
    """Draw a line per run; ``losses`` has float64 ``[num_steps]`` by method."""
    lines = {
        method: [
            np.maximum.reduceat(run, np.arange(0, len(run), BIN))
            for run in runs
        ]
        for method, runs in losses.items()
    }
    every = np.concatenate([line for runs in lines.values() for line in runs])
    low, high = np.log10([every.min(), every.max()])
    num_bins = max(len(line) for runs in lines.values() for line in runs)

    def x(index: float) -> float:
        return LEFT + index / num_bins * (RIGHT - LEFT)

    def y(loss: float) -> float:
        share = (math.log10(loss) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    marks = []
    for tick in range(math.ceil(low), math.floor(high) + 1):
        at = y(10.0**tick)
        marks += [
            f'<path d="M{LEFT} {at:.1f}H{RIGHT}" stroke="var(--grid)"/>',
            f'<text class="s" x="{LEFT - 6}" y="{at + 4:.1f}" '
            f'text-anchor="end">{10.0**tick:g}</text>',
        ]
    num_steps = num_bins * BIN
    for step in range(0, num_steps + 1, 10 ** int(math.log10(num_steps))):
        marks.append(
            f'<text class="s" x="{x(step / BIN):.1f}" y="{HEIGHT - 18}" '
            f'text-anchor="middle">{step:,}</text>'
        )
    marks.append(
        f'<text class="s" x="{WIDTH / 2:.1f}" y="{HEIGHT - 4}" '
        'text-anchor="middle">optimizer step</text>'
    )
    for number, (method, runs) in enumerate(lines.items()):
        color = _COLORS[number]
        marks.append(
            f'<text x="{WIDTH - 170 + 90 * number}" y="18" '
            f'style="fill:{color}">{html.escape(method)}</text>'
        )
        for run in runs:
            points = " ".join(
                f"{x(i):.1f},{y(loss):.1f}" for i, loss in enumerate(run)
            )
            marks.append(
                f'<polyline points="{points}" fill="none" stroke="{color}" '
                'stroke-opacity=".7"/>'
            )
    return framed(title, WIDTH, HEIGHT, marks)
