# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleNLP's ``Trainer``."""

from paddle_adagc.integrations.trainer import ClippingMixin as ClippingMixin
