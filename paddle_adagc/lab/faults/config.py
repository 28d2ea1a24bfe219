# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which faults hit which steps: typed settings, without any randomness."""

from __future__ import annotations

import bisect
import itertools
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from paddle_adagc.lab.section import Count, Natural, Real, Share, section

Kind = Literal[
    "random_tokens",
    "token_noise",
    "repeated_token",
    "shuffled_labels",
    "constant_labels",
    "repeated_batch",
    "gradient_scale",
    "gradient_bit_flip",
    "gradient_inf",
    "gradient_nan",
    "activation_scale",
    "activation_bit_flip",
    "activation_nan",
]

OPTIONS: dict[Kind, tuple[str, ...]] = {
    "random_tokens": (),
    "token_noise": ("fraction",),
    "repeated_token": ("token",),
    "shuffled_labels": (),
    "constant_labels": ("token",),
    "repeated_batch": (),
    "gradient_scale": ("tensor", "magnitude"),
    "gradient_bit_flip": ("tensor", "exponent_bit"),
    "gradient_inf": ("tensor",),
    "gradient_nan": ("tensor",),
    "activation_scale": ("tensor", "magnitude"),
    "activation_bit_flip": ("tensor", "exponent_bit"),
    "activation_nan": ("tensor",),
}
"""Options that each kind of fault takes."""

_ALL_OPTIONS = sorted({name for names in OPTIONS.values() for name in names})
_NEEDED = ("magnitude", "fraction")
"""Options without a default."""


@section
class FaultConfig:
    """One kind of fault and the steps that it hits.

    The steps are either listed (``steps``) or periodic (``start``, ``every``,
    ``stop``); each of them begins a burst of ``duration`` consecutive steps.
    """

    kind: Kind
    """Corrupted batch: ``random_tokens`` (inputs and labels),
    ``token_noise`` (a fraction of them), ``repeated_token`` (one token
    everywhere), ``shuffled_labels``, ``constant_labels`` (one token as every
    label), ``repeated_batch`` (that of the burst's first step). Gradient:
    ``gradient_scale``, or one element of a tensor by ``gradient_bit_flip``,
    ``gradient_inf``, ``gradient_nan``. Output of a layer:
    ``activation_scale``, or one element by ``activation_bit_flip``,
    ``activation_nan``."""

    steps: tuple[Natural, ...] | None = None
    """First steps of the bursts, counted from 0."""

    start: Natural | None = None
    """First step of the first burst, instead of ``steps``."""

    every: Count | None = None
    """Distance between the first steps of bursts; None: one burst."""

    stop: Natural | None = None
    """No burst starts at this step or later; None: no limit."""

    duration: Count = 1
    """Length of a burst, in steps."""

    tensor: Annotated[str, Field(min_length=1)] | None = None
    """Parameter, or sublayer for activations: a name, a glob pattern for all
    that match (``"*"``: all), or None for one chosen by the seed, anew for
    every burst, among the trainable parameters or the leaf sublayers."""

    magnitude: Real | None = None
    """Factor of ``gradient_scale`` and ``activation_scale``, needed there."""

    fraction: Share | None = None
    """Share of the tokens that ``token_noise`` replaces, needed there."""

    exponent_bit: Annotated[Natural, Field(le=7)] | None = None
    """Bit to flip, counted from the exponent's lowest (0; the highest is 7 for
    float32 and bfloat16, 4 for float16); None: chosen by the seed."""

    token: Natural | None = None
    """Token id of ``repeated_token`` and ``constant_labels``; None: chosen by
    the seed, anew for every burst."""

    @field_validator("steps", mode="before")
    @classmethod
    def _check_list(cls, steps: Any) -> Any:
        if steps is not None and (isinstance(steps, str) or not steps):
            raise ValueError(
                f"must be a list of at least one step, got {steps!r}"
            )
        return steps

    @field_validator("steps")
    @classmethod
    def _sort(cls, steps: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return steps and tuple(sorted(steps))

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_when()
        self._check_options()
        return self

    @property
    def target(self) -> str:
        """``"batch"``, ``"gradient"`` or ``"activation"``."""
        prefix = self.kind.split("_")[0]
        return prefix if prefix in ("gradient", "activation") else "batch"

    def burst_start(self, step: int) -> int | None:
        """First step of the burst that ``step`` lies in, None if in none."""
        if self.steps is not None:
            num_begun = bisect.bisect_right(self.steps, step)
            if not num_begun:
                return None
            burst = self.steps[num_begun - 1]
        else:
            assert self.start is not None
            if step < self.start:
                return None
            burst = self.start
            if self.every is not None:
                burst += (step - self.start) // self.every * self.every
            if self.stop is not None and burst >= self.stop:
                return None
        return burst if step < burst + self.duration else None

    def _check_when(self) -> None:
        if (self.steps is None) == (self.start is None):
            raise ValueError(
                f"a fault needs either steps or start, got steps={self.steps} "
                f"and start={self.start}"
            )
        if self.start is None:
            self._check_steps()
            return
        if self.every is not None and self.every < self.duration:
            raise ValueError(
                f"bursts of duration {self.duration} overlap at "
                f"every={self.every}"
            )
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(
                f"stop must be after start={self.start}, got {self.stop}"
            )

    def _check_steps(self) -> None:
        assert self.steps is not None
        for name in ("every", "stop"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)} goes with start, not "
                    "with steps"
                )
        for first, second in itertools.pairwise(self.steps):
            if second - first < self.duration:
                raise ValueError(
                    f"bursts of duration {self.duration} overlap at steps "
                    f"{first} and {second}"
                )

    def _check_options(self) -> None:
        taken = OPTIONS[self.kind]
        for name in _ALL_OPTIONS:
            value = getattr(self, name)
            if value is not None and name not in taken:
                raise ValueError(
                    f"{self.kind} takes no {name}, got {name}={value!r}"
                )
        for name in _NEEDED:
            if name in taken and getattr(self, name) is None:
                raise ValueError(f"{self.kind} needs {name}")
