# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Twenty-four faults of one step, for the numerical matrix of the trials."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from paddle_adagc.lab.faults.config import FaultConfig


@dataclasses.dataclass(frozen=True)
class StepFault:
    """What is wrong with one step of a training, or with eight of them."""

    name: str
    """As in the table of the documentation."""

    settings: dict[str, Any] | None = None
    """Of a fault of the batch or of gradients; without the steps."""

    learning_rate: float = 1.0
    """Factor of the step's learning rate."""

    moment: Literal["moment1", "moment2"] | None = None
    """Accumulator of the optimizer that is corrupted after the step."""

    magnitude: float = 1.0
    """Factor of that accumulator, in all tensors."""

    def config(self, step: int) -> tuple[FaultConfig, ...]:
        """Return the fault for a schedule, hitting ``step``."""
        if self.settings is None:
            return ()
        return (FaultConfig(steps=(step,), **self.settings),)


def _gradient(
    kind: str, label: str, **options: float
) -> tuple[StepFault, StepFault]:
    """Return a fault of all gradients, and of one that the seed chooses."""
    settings = {"kind": f"gradient_{kind}", **options}
    return (
        StepFault(f"all gradients: {label}", {**settings, "tensor": "*"}),
        StepFault(f"one gradient: {label}", settings),
    )


FAULTS = (
    *_gradient("scale", "x 1e6", magnitude=1e6),
    *_gradient("scale", "x 1e3", magnitude=1e3),
    *_gradient("scale", "x 1e-3", magnitude=1e-3),
    *_gradient("scale", "x 1e-6", magnitude=1e-6),
    *_gradient("scale", "other sign", magnitude=-1.0),
    *_gradient("scale", "zero", magnitude=0.0),
    *_gradient("nan", "NaN in one element"),
    *_gradient("inf", "Inf in one element"),
    StepFault(
        "one gradient: highest exponent bit of one element flipped",
        {"kind": "gradient_bit_flip", "exponent_bit": 7},
    ),
    StepFault("batch: random tokens", {"kind": "random_tokens"}),
    StepFault("batch: shuffled labels", {"kind": "shuffled_labels"}),
    StepFault(
        "batch: 8 steps of the same one",
        {"kind": "repeated_batch", "duration": 8},
    ),
    StepFault("learning rate x 10", learning_rate=10.0),
    StepFault("learning rate x 100", learning_rate=100.0),
    StepFault("first moments x 1e3", moment="moment1", magnitude=1e3),
    StepFault("second moments x 1e-6", moment="moment2", magnitude=1e-6),
)
"""The faults of the matrix."""

CONTROL = StepFault(
    "no fault (gradients x 1.000001)",
    {"kind": "gradient_scale", "tensor": "*", "magnitude": 1.000001},
)
"""Rounding errors, as far as they grow."""
