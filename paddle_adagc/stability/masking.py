# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An instability that a clip masks. NumPy alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

_BLOCK = 64
_NUM_RISEN = 4
_NUM_PAST = 64


class Masking:
    """How far a run's gradient norm has risen while its clip cut more.

    A bad batch raises the norm for a few steps. If it stays high for hundreds,
    and h falls with it, the run is unstable and the clip hides that from the
    loss: see "What the creep under AdaGC is" in the documentation.

    Steps form blocks of 64, with the medians of norm and h. The last four
    blocks are compared with the one of the lowest norm among the 64 before.
    """

    def __init__(self) -> None:
        self._open: list[tuple[float, float]] = []
        self._blocks = deque[tuple[float, float]](maxlen=_NUM_PAST + _NUM_RISEN)

    def update(self, norm: float, h: float) -> float:
        """Take a step's global norm before the clip, and the median h.

        Returns:
            The lowest norm of the last four blocks over the usual one; see
            :meth:`rise`.
        """
        if math.isfinite(norm) and math.isfinite(h):
            self._open.append((norm, h))
        if len(self._open) == _BLOCK:
            self._blocks.append(tuple(np.median(self._open, 0).tolist()))
            self._open = []
        return self.rise(_NUM_RISEN)

    def rise(self, num_blocks: int) -> float:
        """Return the lowest norm of the last blocks over the usual one.

        1 unless the last block's h is at most half of what it was then.
        """
        blocks = [*self._blocks]
        past, risen = blocks[:-num_blocks], blocks[-num_blocks:]
        if not past:
            return 1.0
        usual, its_h = min(past)
        has_fallen = risen[-1][1] <= its_h / 2
        lowest = min(norm for norm, _ in risen)
        return lowest / usual if has_fallen and usual > 0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON-serialisable values."""
        return {
            "open": [[*pair] for pair in self._open],
            "blocks": [[*pair] for pair in self._blocks],
        }

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume."""
        self._open = [(norm, h) for norm, h in state["open"]]
        self._blocks.clear()
        self._blocks.extend((norm, h) for norm, h in state["blocks"])
