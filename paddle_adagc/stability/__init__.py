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
"""How stable a run is: spike scores, a monitor, paired excess. NumPy alone."""

from paddle_adagc.stability.alarms import WATCHES, Alarm, Monitor, Watch
from paddle_adagc.stability.events import EVENT_GAP, group_events
from paddle_adagc.stability.excess import PairedExcess, paired_excess
from paddle_adagc.stability.monitor import Spike, SpikeMonitor
from paddle_adagc.stability.spike_score import (
    SpikeScore,
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
