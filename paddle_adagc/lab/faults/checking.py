# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Refuse faults that do not fit a model, before it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paddle_adagc.lab.faults.config import FaultConfig
from paddle_adagc.lab.faults.tensors import matching_names

if TYPE_CHECKING:
    from paddle.nn import Layer


def check_faults(
    faults: Sequence[FaultConfig], model: Layer, num_words: int
) -> None:
    """Refuse faults that could not be injected."""
    for fault in faults:
        if fault.token is not None:
            check_token(fault.token, num_words)
        if fault.tensor is None:
            continue
        if fault.target == "gradient":
            names = [
                name
                for name, parameter in model.named_parameters()
                if not parameter.stop_gradient
            ]
        else:
            names = [name for name, _ in model.named_sublayers()]
        matching_names(fault, names)


def check_token(token: int, num_words: int) -> None:
    """Check a token id."""
    if token >= num_words:
        raise ValueError(f"token {token} is not below {num_words}")
