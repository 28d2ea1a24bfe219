# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A record alone, as a callback of a Trainer."""

from __future__ import annotations

from paddle.nn.clip import ClipGradBase

from paddle_adagc.integrations.callbacks import TrainerEvents
from paddle_adagc.integrations.no_record import StopOn, Where
from paddle_adagc.integrations.recording import TrainerRecord


class WatchingCallback(TrainerEvents):
    """Record a Trainer's run, whose clip stays; log numbers as the mixin does.

    Checkpoints get the state of the shadow: :class:`.ClippingMixin` goes on
    from there without a warm-up.

    Args:
        record: See :class:`.ClippingMixin`.
        shadow: See :class:`.Record`.
        skip_above: See :class:`.ClippingMixin`.
        stop_on: See :class:`.ClippingMixin`.
    """

    def __init__(
        self,
        record: Where = True,
        shadow: ClipGradBase | bool | None = None,
        skip_above: float | None = None,
        stop_on: StopOn = None,
    ) -> None:
        super().__init__(TrainerRecord(record, shadow, skip_above, stop_on))
