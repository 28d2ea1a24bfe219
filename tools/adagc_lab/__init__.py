# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The laboratory: train, break, measure and compare. Not in the wheel."""

from __future__ import annotations

import importlib.util


def check_installed(module: str, extra: str) -> None:
    """Raise ``ImportError`` unless a module of the package's extra is there."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{module} is not installed here: pip install -e '.[{extra}]' "
            "(PaddleNLP and PaddleFormers need separate environments)"
        )
