# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleFleet's ``Trainer``: :mod:`.trainer`, with its callback.

Written from PaddleFleet's public sources; not run with it.
"""

from paddlefleet.trainer import TrainerCallback, integrations

from paddle_adagc.integrations import trainer
from paddle_adagc.integrations.trainer import ClippingMixin

__all__ = ["ClippingCallback", "ClippingMixin"]


class ClippingCallback(trainer.ClippingCallback, TrainerCallback):
    """See :class:`paddle_adagc.integrations.trainer.ClippingCallback`."""

    _integrations = integrations
