# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How stable a run is: spike scores, a monitor, paired excess. NumPy alone."""

from paddle_adagc.stability.alarms import WATCHES, Alarm, Monitor, Watch
from paddle_adagc.stability.excess import PairedExcess, paired_excess
from paddle_adagc.stability.monitor import Spike, SpikeMonitor
from paddle_adagc.stability.spike_score import (
    EVENT_GAP,
    SpikeScore,
    group_events,
    robust_spike_score,
    spike_score,
)

__all__ = [
    "EVENT_GAP",
    "WATCHES",
    "Alarm",
    "Monitor",
    "PairedExcess",
    "Spike",
    "SpikeMonitor",
    "SpikeScore",
    "Watch",
    "group_events",
    "paired_excess",
    "robust_spike_score",
    "spike_score",
]
