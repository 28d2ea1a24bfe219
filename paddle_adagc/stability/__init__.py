# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How stable a run is: spike scores and a monitor. NumPy alone."""

from paddle_adagc.spikes import SpikeScore, spike_score
from paddle_adagc.stability.alarms import WATCHES, Alarm, Monitor, Watch

__all__ = [
    "WATCHES",
    "Alarm",
    "Monitor",
    "SpikeScore",
    "Watch",
    "spike_score",
]
