# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that AMP must leave alone."""

import contextlib

import paddle


def without_autocast() -> contextlib.AbstractContextManager[None]:
    """Keep the operands' dtypes under AMP."""
    if paddle.amp.is_autocast_enabled():
        return paddle.amp.auto_cast(enable=False)
    return contextlib.nullcontext()
