# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC for PaddlePaddle: adaptive per-tensor gradient clipping.

The names below are imported when they are first used: ``import paddle_adagc``
alone does not load Paddle, so commands answer ``--help`` at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddle_adagc.clips.adagc import ClipGradByAdaGC
    from paddle_adagc.spikes import spike_score
    from paddle_adagc.state_file import load_state, save_state

__version__ = "0.1.0"
__all__ = ["ClipGradByAdaGC", "load_state", "save_state", "spike_score"]

_MODULES = {
    "ClipGradByAdaGC": "clips.adagc",
    "load_state": "state_file",
    "save_state": "state_file",
    "spike_score": "spikes",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"paddle_adagc.{_MODULES[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
