# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fault injection: seeded, and the same for every method.

A trainer asks :meth:`FaultSchedule.at` at every step and hands each fault to
the function of its target, at its moment of the step:

- ``"batch"``: :func:`apply_to_batch` before the forward pass; for
  ``repeated_batch`` it takes the samples of :func:`repeated_samples`;
- ``"gradient"``: :func:`apply_to_gradients` after the backward pass, before
  the optimizer step.
"""

from paddle_adagc.lab.faults.batch import (
    REPEATED_BATCH,
    apply_to_batch,
    repeated_samples,
)
from paddle_adagc.lab.faults.config import Fault, FaultConfig, FaultSchedule
from paddle_adagc.lab.faults.tensors import (
    apply_to_gradients,
    check_faults,
)

__all__ = [
    "REPEATED_BATCH",
    "Fault",
    "FaultConfig",
    "FaultSchedule",
    "apply_to_batch",
    "apply_to_gradients",
    "check_faults",
    "repeated_samples",
]
