# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleFleet's ``Trainer``.

Written from PaddleFleet's public sources; not run with it.
"""

from paddle_adagc.integrations.trainer import ClippingMixin

__all__ = ["ClippingMixin"]
