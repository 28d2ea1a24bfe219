# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fault injection: seeded, and the same for every method.

A trainer asks :meth:`FaultSchedule.at` at every step and hands each fault to
the function of its target, at its moment of the step:

- ``"batch"``: :func:`apply_to_batch`, or :func:`apply_to_pairs` for images
  and captions, before the forward pass; for ``repeated_batch`` it takes the
  samples of :func:`repeated_samples`;
- ``"activation"``: :func:`activation_fault` around the forward (and, with
  recomputation, the backward) pass;
- ``"gradient"``: :func:`apply_to_gradients` after the backward pass, before
  the optimizer step.

:meth:`Fault.record` makes the entry of the run record.
"""

from paddle_adagc.lab.faults.batch import (
    REPEATED_BATCH,
    apply_to_batch,
    apply_to_pairs,
    repeated_samples,
)
from paddle_adagc.lab.faults.config import Fault, FaultConfig, FaultSchedule
from paddle_adagc.lab.faults.tensors import (
    activation_fault,
    apply_to_gradients,
    check_faults,
)

__all__ = [
    "REPEATED_BATCH",
    "Fault",
    "FaultConfig",
    "FaultSchedule",
    "activation_fault",
    "apply_to_batch",
    "apply_to_gradients",
    "apply_to_pairs",
    "check_faults",
    "repeated_samples",
]
