# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Which faults hit which steps: typed settings, without any randomness."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from paddle_adagc.checks import (
    check_choice,
    check_integer,
    check_positive,
    check_real,
    suggestion,
)

OPTIONS: dict[str, tuple[str, ...]] = {
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
"""Kinds of faults, each with the options that it takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultConfig:
    """One kind of fault and the steps that it hits.

    The steps are either listed (``steps``) or periodic (``start``, ``every``,
    ``stop``); each of them begins a burst of ``duration`` consecutive steps.

    Raises:
        TypeError: A value of a wrong type.
        ValueError: An unknown kind, an option that the kind does not take,
            overlapping bursts, or a value out of its range.
    """

    kind: str
    """Corrupted batch: ``random_tokens`` (inputs and labels),
    ``token_noise`` (a fraction of them), ``repeated_token`` (one token
    everywhere), ``shuffled_labels``, ``constant_labels`` (one token as every
    label), ``repeated_batch`` (that of the burst's first step). Gradient:
    ``gradient_scale``, or one element of a tensor by ``gradient_bit_flip``,
    ``gradient_inf``, ``gradient_nan``. Output of a layer:
    ``activation_scale``, or one element by ``activation_bit_flip``,
    ``activation_nan``."""

    steps: tuple[int, ...] | None = None
    """First steps of the bursts, counted from 0."""

    start: int | None = None
    """First step of the first burst, instead of ``steps``."""

    every: int | None = None
    """Distance between the first steps of bursts; None: one burst."""

    stop: int | None = None
    """No burst starts at this step or later; None: no limit."""

    duration: int = 1
    """Length of a burst, in steps."""

    tensor: str | None = None
    """Parameter, or sublayer for activations: a name, a glob pattern for all
    that match (``"*"``: all), or None for one chosen by the seed, anew for
    every burst, among the trainable parameters or the leaf sublayers."""

    magnitude: float | None = None
    """Factor of ``gradient_scale`` and ``activation_scale``, needed there."""

    fraction: float | None = None
    """Share of the tokens that ``token_noise`` replaces, needed there."""

    exponent_bit: int | None = None
    """Bit to flip, counted from the exponent's lowest (0; the highest is 7 for
    float32 and bfloat16, 4 for float16); None: chosen by the seed."""

    token: int | None = None
    """Token id of ``repeated_token`` and ``constant_labels``; None: chosen by
    the seed, anew for every burst."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FaultConfig:
        """Make a config from a mapping, for example one read from YAML.

        Raises:
            TypeError: As for the class.
            ValueError: As for the class; an unknown key, with the nearest
                valid name; no ``kind``.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise ValueError(
                    f"unknown key {key!r} of a fault{suggestion(key, names)}"
                )
        if "kind" not in values:
            raise ValueError(f"the fault {dict(values)} has no 'kind'")
        return cls(**values)

    def __post_init__(self) -> None:
        """Validate every field, and make ``steps`` a sorted tuple."""
        check_choice("kind", self.kind, OPTIONS)
        check_integer("duration", self.duration, 1)
        self._check_when()
        self._check_options()

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
        if self.steps is not None:
            for name in ("every", "stop"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}={getattr(self, name)} goes with start, not "
                        "with steps"
                    )
            self._check_steps()
            return
        start = check_integer("start", self.start, 0)
        if self.every is not None:
            check_integer("every", self.every, 1)
            if self.every < self.duration:
                raise ValueError(
                    f"bursts of duration {self.duration} overlap at "
                    f"every={self.every}"
                )
        if self.stop is not None:
            check_integer("stop", self.stop, start + 1)

    def _check_steps(self) -> None:
        if isinstance(self.steps, (int, str)) or not self.steps:
            raise ValueError(
                f"steps must be a list of at least one step, got {self.steps!r}"
            )
        steps = sorted(check_integer("step", step, 0) for step in self.steps)
        for first, second in itertools.pairwise(steps):
            if second - first < self.duration:
                raise ValueError(
                    f"bursts of duration {self.duration} overlap at steps "
                    f"{first} and {second}"
                )
        object.__setattr__(self, "steps", tuple(steps))

    def _check_options(self) -> None:
        taken = OPTIONS[self.kind]
        for name in (
            "tensor",
            "magnitude",
            "fraction",
            "exponent_bit",
            "token",
        ):
            value = getattr(self, name)
            if value is not None and name not in taken:
                raise ValueError(
                    f"{self.kind} takes no {name}, got {name}={value!r}"
                )
        if "magnitude" in taken:
            if self.magnitude is None:
                raise ValueError(f"{self.kind} needs magnitude, a factor")
            magnitude = check_real("magnitude", self.magnitude)
            object.__setattr__(self, "magnitude", magnitude)
        if "fraction" in taken and self.fraction is None:
            raise ValueError(f"{self.kind} needs fraction, a share of tokens")
        if self.fraction is not None:
            fraction = check_positive("fraction", self.fraction)
            if fraction > 1:
                raise ValueError(f"fraction must be at most 1, got {fraction}")
            object.__setattr__(self, "fraction", fraction)
        if self.tensor is not None and (
            not isinstance(self.tensor, str) or not self.tensor
        ):
            raise ValueError(
                f"tensor must be a name or a pattern, got {self.tensor!r}"
            )
        if self.exponent_bit is not None:
            check_integer("exponent_bit", self.exponent_bit, 0)
            if self.exponent_bit > 7:
                raise ValueError(
                    f"exponent_bit must be at most 7, got {self.exponent_bit}"
                )
        if self.token is not None:
            check_integer("token", self.token, 0)
