# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which faults hit which steps, and the generators of their random values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_adagc.lab.section import Count, Natural, Real, section

Kind = Literal[
    "random_tokens",
    "shuffled_labels",
    "constant_labels",
    "repeated_batch",
    "gradient_scale",
    "gradient_bit_flip",
    "gradient_inf",
    "gradient_nan",
]

_TAKEN_BY = {
    "tensor": "gradient",
    "magnitude": "gradient_scale",
    "exponent_bit": "gradient_bit_flip",
}
"""Options -> beginning of the kinds that take them."""


@section
class FaultConfig:
    """One kind of fault and the steps that it hits.

    The steps are either listed (``steps``) or periodic (``start``, ``every``);
    each of them begins a burst of ``duration`` consecutive steps.
    """

    kind: Kind
    """Corrupted batch: ``random_tokens`` (inputs and labels),
    ``shuffled_labels``, ``constant_labels`` (one token as every label),
    ``repeated_batch`` (that of the burst's first step). Gradient:
    ``gradient_scale``, or one element of a tensor by ``gradient_bit_flip``,
    ``gradient_inf``, ``gradient_nan``."""

    steps: Annotated[tuple[Natural, ...], Field(min_length=1)] | None = None
    """First steps of the bursts, counted from 0."""

    start: Natural | None = None
    """First step of the first burst, instead of ``steps``."""

    every: Count | None = None
    """Distance between the first steps of bursts; None: one burst."""

    duration: Count = 1
    """Length of a burst, in steps."""

    tensor: Annotated[str, Field(min_length=1)] | None = None
    """Parameter: a name, a glob pattern for all that match (``"*"``: all), or
    None for one chosen by the seed, anew for every burst, among the trainable
    parameters."""

    magnitude: Real | None = None
    """Factor of ``gradient_scale``, needed there."""

    exponent_bit: Annotated[Natural, Field(le=7)] | None = None
    """Bit to flip, counted from the exponent's lowest (0; the highest is 7);
    None: chosen by the seed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, kinds in _TAKEN_BY.items():
            value = getattr(self, name)
            if value is not None and not self.kind.startswith(kinds):
                raise ValueError(
                    f"{self.kind} takes no {name}, got {name}={value!r}"
                )
        if self.kind == "gradient_scale" and self.magnitude is None:
            raise ValueError("gradient_scale needs magnitude")
        if (self.steps is None) == (self.start is None):
            raise ValueError(
                f"a fault needs either steps or start, got steps={self.steps} "
                f"and start={self.start}"
            )
        if self.every is not None:
            if self.steps is not None:
                raise ValueError(
                    f"every={self.every} goes with start, not with steps"
                )
            if self.every < self.duration:
                raise ValueError(
                    f"bursts of duration {self.duration} overlap at "
                    f"every={self.every}"
                )
        for first, second in itertools.pairwise(sorted(self.steps or ())):
            if second - first < self.duration:
                raise ValueError(
                    f"bursts of duration {self.duration} overlap at steps "
                    f"{first} and {second}"
                )
        return self

    @property
    def target(self) -> str:
        """``"batch"`` or ``"gradient"``."""
        return "gradient" if self.kind.startswith("gradient") else "batch"

    def burst_start(self, step: int) -> int | None:
        """First step of the burst that ``step`` lies in, None if in none."""
        starts = self.steps or (self.start or 0,)
        begun = [start for start in starts if start <= step]
        if not begun:
            return None
        burst = max(begun)
        if self.every is not None:
            burst += (step - burst) // self.every * self.every
        return burst if step < burst + self.duration else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault at one step.

    Everything random about it comes from generators that depend on its fields
    only: a fault corrupts the same values after a resume, in any order of
    faults, and for every method.
    """

    config: FaultConfig
    step: int  # that is hit, from 0
    burst: int  # first step of the burst that the step belongs to
    index: int  # of the config in its schedule
    seed: int  # of the schedule

    @property
    def kind(self) -> str:
        """Kind of the fault."""
        return self.config.kind

    @property
    def target(self) -> str:
        """``"batch"`` or ``"gradient"``."""
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
