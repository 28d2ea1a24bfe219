# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleFleet's ``Trainer``.

Written from PaddleFleet's public sources; not run with it.
"""

from typing import TYPE_CHECKING, Any

from paddle_adagc.integrations.trainer import ClippingMixin

if TYPE_CHECKING:
    from paddle_adagc.integrations.callbacks import ClippingCallback

__all__ = ["ClippingCallback", "ClippingMixin"]


def __getattr__(name: str) -> Any:
    """Import the callback when it is first used: the mixin does more."""
    if name == "ClippingCallback":
        from paddle_adagc.integrations.callbacks import ClippingCallback

        return ClippingCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
