# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizers that the paper compares with, as Paddle optimizers.

Imported when they are first used, as the names of :mod:`paddle_adagc`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddle_adagc.optimizers.lion import Lion
    from paddle_adagc.optimizers.muon import Muon, hidden_matrices
    from paddle_adagc.optimizers.spam import SPAM
    from paddle_adagc.optimizers.stable_adamw import StableAdamW
    from paddle_adagc.optimizers.update_clips import ClippedAdamW

_MODULES = {
    "ClippedAdamW": "update_clips",
    "Lion": "lion",
    "Muon": "muon",
    "SPAM": "spam",
    "StableAdamW": "stable_adamw",
    "hidden_matrices": "muon",
}
__all__ = [
    "SPAM",
    "ClippedAdamW",
    "Lion",
    "Muon",
    "StableAdamW",
    "hidden_matrices",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]
