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
"""How injected faults look in every figure over steps."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.stability.events import group_events

FAULT_COLOR = "#6e40c9"
_ALPHA = 0.22


def fault_bursts(run: RunRecord) -> list[tuple[int, int]]:
    """First and last step of each burst of faults, in order."""
    return list(group_events(sorted(run.faults)))


def mark_faults(
    ax: Axes, runs: Iterable[RunRecord], start: int, stop: int
) -> None:
    """Shade the bursts of faults of any of ``runs`` in ``[start, stop)``.

    A burst is at least a 250th of the axis wide, so that it can be seen.
    """
    least = (stop - start) / 250
    for first, last in sorted({b for run in runs for b in fault_bursts(run)}):
        if first < stop and last >= start:
            widen = max(0.0, least - (last - first)) / 2
            ax.axvspan(
                first - widen,
                last + widen,
                color=FAULT_COLOR,
                alpha=_ALPHA,
                linewidth=0,
                zorder=1,
            )


def fault_legend() -> Patch:
    """Legend entry of the shading."""
    return Patch(color=FAULT_COLOR, alpha=_ALPHA, label="injected fault")
