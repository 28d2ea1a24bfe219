# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's models on PyTorch, which ours are compared with."""

import importlib
import sys

import pytest


def torch_and_transformers():
    """Import both or skip; PaddleFormers hides the one from the other."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not transformers.is_torch_available():
        for name in [*sys.modules]:
            if name.partition(".")[0] == "transformers":
                del sys.modules[name]
        transformers = importlib.import_module("transformers")
    return torch, transformers
