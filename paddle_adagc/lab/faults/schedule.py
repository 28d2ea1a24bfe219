# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults by step: a pure function of the seed and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddle_adagc.lab.faults.config import FaultConfig


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault at one step.

    Everything random about it comes from generators that depend on its fields
    only: a fault corrupts the same values after a resume, in any order of
    faults, and for every method.
    """

    config: FaultConfig
    step: int
    """Step that is hit, from 0."""

    burst: int
    """First step of the burst that the step belongs to."""

    index: int
    """Position of the config in its schedule."""

    seed: int
    """Seed of the schedule."""

    @property
    def kind(self) -> str:
        """Kind of the fault."""
        return self.config.kind

    @property
    def target(self) -> str:
        """``"batch"``, ``"gradient"`` or ``"activation"``."""
        return self.config.target

    def burst_rng(self) -> np.random.Generator:
        """Return the generator of values that a burst keeps: tensor, token."""
        return np.random.default_rng(
            [self.seed, self.index, self.burst, 0, 0, 1]
        )

    def step_rng(self, part: int = 0) -> np.random.Generator:
        """Return the generator of a step's own values: elements, tokens.

        ``part`` tells apart what makes up a step: micro-batches, ranks, hit
        tensors.
        """
        return np.random.default_rng(
            [self.seed, self.index, self.burst, self.step, part, 2]
        )

    def record(self, tensors: Sequence[str] = ()) -> dict[str, Any]:
        """Return the entry for the run record, which JSON can hold."""
        return {"kind": self.kind, "tensors": list(tensors)}


class FaultSchedule:
    """The faults of a run: the seed decides tensors, elements and tokens."""

    def __init__(self, faults: Sequence[FaultConfig], seed: int) -> None:
        self.faults = tuple(faults)
        self.seed = seed

    def at(self, step: int) -> list[Fault]:
        """Return the faults that hit a step, in the order of the settings."""
        return [
            Fault(config=c, step=step, burst=burst, index=i, seed=self.seed)
            for i, c in enumerate(self.faults)
            if (burst := c.burst_start(step)) is not None
        ]

    def fault_steps(self, num_steps: int) -> list[int]:
        """Return the steps below ``num_steps`` that any fault hits."""
        return [step for step in range(num_steps) if self.at(step)]

    def corrupted_loss_steps(self, num_steps: int) -> list[int]:
        """Return the steps below ``num_steps`` whose loss is corrupted itself.

        A corrupted batch or activation changes the loss of its own step, a
        corrupted gradient only those of later steps.
        """
        return [
            step
            for step in range(num_steps)
            if any(fault.target != "gradient" for fault in self.at(step))
        ]
