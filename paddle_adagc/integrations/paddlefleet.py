# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleFleet's ``Trainer``; not run with it."""

from paddle_adagc.integrations.trainer import ClippingMixin as ClippingMixin
