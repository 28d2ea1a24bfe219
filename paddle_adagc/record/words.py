# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an alarm says in a line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paddle_adagc.record.judge import Finding
from paddle_adagc.stability.alarms import Alarm

_NUM_NAMED = 3  # tensors in a line

_NOTES = {
    "h_median": "the clip left less than half of the median tensor's gradient "
    "in each of 200 steps{clipped}",
    "masked": "the norm before the clip rose to {worst:.3g} times its lowest "
    "level for hundreds of steps while h fell: the run is unstable and the "
    "clip masks it; lower the learning rate",
    "small_second_moment": "{worst:.0%} of the elements have sqrt(v) below 10 "
    "epsilon: epsilon, not the gradient, sets their step",
    "stuck": "tensors were clipped below h 0.01 in each of 200 steps "
    "({worst:.0f} at the worst step): they hardly train; clip.summary() names "
    "them",
    "step_seconds": "a step took {worst:.3g} s (usual {usual:.3g})",
}
_MASKED = ", as the norm rose (masked: lower the learning rate)"
_TOO_LOW = ": the threshold, or gamma at the start, is too low for calm steps"


def spike_text(alarm: Alarm, loss: float | None, finding: Finding) -> str:
    """Say how far a series was from its usual value, in an event."""
    if alarm.series == "nonfinite":
        text = f"{alarm.worst:.0f} tensors with Inf or NaN"
        if loss is None or not math.isfinite(loss):
            return text
        return f"{text}, although the loss is {loss:.4g}"
    if alarm.series == "tensor_norm":
        ratios = [g.ratio for g in finding.guilty if math.isfinite(g.ratio)]
        ratio = max(ratios, default=alarm.worst)
        return f"a tensor at {ratio:.3g} times its usual norm"
    return f"{alarm.series} {alarm.worst:.4g} (usual {alarm.usual:.4g})"


def note(alarm: Mapping[str, Any]) -> str:
    """Say in a line what an alarm that is no spike means."""
    clipped = ""
    if "clipped_fraction" in alarm:
        clipped = " ({clipped_fraction:.0%} of the tensors clipped, median h "
        clipped = (clipped + "{h_median:.2g})").format(**alarm)
    text = _NOTES[alarm["series"]].format(**alarm, clipped=clipped)
    if alarm["series"] == "h_median":
        text += _MASKED if alarm["kind"] == "masked" else _TOO_LOW
    return f"from step {alarm['start']} on {text}"


def who(finding: Finding) -> str:
    """Name the guilty in a line for a log; "" if there are none."""
    if finding.kind == "batch":
        return f"{finding.share:.0%} of the tensors at once: a batch"
    if not finding.guilty:
        return ""
    names = [
        f"{g.key} ({_times(g.ratio)})" for g in finding.guilty[:_NUM_NAMED]
    ]
    more = len(finding.guilty) - _NUM_NAMED
    rest = f" and {more} more" if more > 0 else ""
    layer = f"{finding.guilty[0].layer}: " * (finding.kind == "layer")
    return layer + ", ".join(names) + rest


def _times(ratio: float) -> str:
    return "Inf or NaN" if np.isinf(ratio) else f"{ratio:.3g} x its usual norm"
