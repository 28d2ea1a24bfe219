# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fault injection: seeded, and the same for every method.

A test tool. A trainer asks :func:`faults_at` at every step and hands each fault
to the function of its target, at its moment of the step:

- ``"batch"``: :func:`apply_to_batch` before the forward pass; for
  ``repeated_batch`` it takes the batch of the burst's first step itself;
- ``"gradient"``: :func:`apply_to_gradients` after the backward pass, before
  the optimizer step. It waits for the device.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import Self

from adagc_lab.section import Count, Natural, Real, Section
from paddle_adagc.checks import suggestion

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.nn import Layer

Kind = Literal[
    "random_tokens",
    "constant_labels",
    "repeated_batch",
    "gradient_scale",
    "gradient_noise",
    "gradient_bit_flip",
    "gradient_nan",
]

_SIZED = ("gradient_scale", "gradient_noise")
_TAKEN_BY: dict[str, str | tuple[str, ...]] = {
    "tensor": "gradient",
    "magnitude": _SIZED,
    "exponent_bit": "gradient_bit_flip",
}
"""Options -> beginning of the kinds that take them."""

_LAYOUT = {"float32": (np.uint32, 23), "bfloat16": (np.uint16, 7)}
"""Unsigned integer of the same size, mantissa bits."""

_NUM_EXPONENT = 8


class FaultConfig(Section):
    """One kind of fault and the steps that it hits.

    The steps are either listed (``steps``) or periodic (``start``, ``every``);
    each of them begins a burst of ``duration`` consecutive steps.
    """

    kind: Kind
    """Corrupted batch: ``random_tokens`` (inputs and labels),
    ``constant_labels`` (one token as every label), ``repeated_batch`` (that of
    the burst's first step). Gradient: ``gradient_scale``, ``gradient_noise``
    (normal, of ``magnitude`` times the tensor's root mean square), or one
    element of a tensor by ``gradient_bit_flip``, ``gradient_nan``."""

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
    """Factor of ``gradient_scale``, relative size of ``gradient_noise``; needed
    there."""

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
        if self.kind in _SIZED and self.magnitude is None:
            raise ValueError(f"{self.kind} needs magnitude")
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

    @property
    def starts(self) -> tuple[int, ...]:
        """First steps of the bursts, without those that ``every`` repeats."""
        return self.steps or (self.start or 0,)

    def burst_start(self, step: int) -> int | None:
        """First step of the burst that ``step`` lies in, None if in none."""
        begun = [start for start in self.starts if start <= step]
        if not begun:
            return None
        burst = max(begun)
        if self.every is not None:
            burst += (step - burst) // self.every * self.every
        return burst if step < burst + self.duration else None


def unreached_faults(
    faults: Iterable[FaultConfig], max_steps: int
) -> list[str]:
    """Say in a line for each fault that hits no step of a run."""
    return [
        f"{fault.kind} hits no step: its first is {min(fault.starts)}, and "
        f"train.max_steps={max_steps}"
        for fault in faults
        if min(fault.starts) >= max_steps
    ]


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
        return self.config.kind

    @property
    def target(self) -> str:
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


def faults_at(
    configs: Sequence[FaultConfig], step: int, seed: int
) -> list[Fault]:
    """Return the faults that hit a step, in the order of the settings."""
    return [
        Fault(config=config, step=step, burst=burst, index=index, seed=seed)
        for index, config in enumerate(configs)
        if (burst := config.burst_start(step)) is not None
    ]


def apply_to_batch(
    fault: Fault,
    input_ids: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    part: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupt a batch of next-token prediction, int64 ``[batch, seq]``.

    ``labels[:, t]`` is the token after ``input_ids[:, t]``; negative labels are
    ignored positions and stay as they are. ``random_tokens`` draws one stream a
    row, from which inputs and labels are cut, so that the labels are still the
    next tokens.
    ``part`` is the index of the micro-batch or the data-parallel rank, which
    are corrupted differently.
    """
    inputs, targets = np.array(input_ids, np.int64), np.array(labels, np.int64)
    valid = targets >= 0
    if fault.kind == "random_tokens":
        num_rows, length = inputs.shape
        rng, size = fault.step_rng(part), (num_rows, length + 1)
        stream = rng.integers(vocab_size, size=size)
        return stream[:, :-1], np.where(valid, stream[:, 1:], targets)
    targets[valid] = int(fault.burst_rng().integers(vocab_size))
    return inputs, targets


def apply_to_gradients(
    fault: Fault, named_parameters: Iterable[tuple[str, Tensor]]
) -> list[str]:
    """Corrupt gradients in place, between backward and the optimizer step.

    The gradient is ``main_grad`` where the parameter has one, else ``grad``.
    The choice by the seed is among all trainable parameters, by name: it does
    not depend on which of them have a gradient. Gives the sorted names hit.
    """
    import paddle

    parameters = {n: p for n, p in named_parameters if not p.stop_gradient}
    hit = []
    for part, name in enumerate(_choose(fault, parameters)):
        gradient = getattr(parameters[name], "main_grad", None)
        if gradient is None:
            gradient = parameters[name].grad
        if gradient is None:
            continue
        with paddle.no_grad():
            gradient.set_value(_corrupted(gradient, fault, part))
        hit.append(name)
    return hit


def _choose(fault: Fault, names: Collection[str]) -> list[str]:
    """Return the sorted names that are hit: the chosen ones, or one drawn."""
    if fault.config.tensor is not None:
        return _matching(fault.kind, fault.config.tensor, names)
    if not names:
        raise ValueError(f"the model has nothing for {fault.kind} to hit")
    drawable = sorted(names)
    return [drawable[int(fault.burst_rng().integers(len(drawable)))]]


def _matching(kind: str, pattern: str, names: Collection[str]) -> list[str]:
    """Return the sorted names that ``tensor`` (name or pattern) selects."""
    if pattern in names:
        return [pattern]
    chosen = sorted(n for n in names if fnmatch.fnmatchcase(n, pattern))
    if not chosen:
        raise ValueError(
            f"{kind}: nothing in the model matches tensor={pattern!r}"
            f"{suggestion(pattern, names)}"
        )
    return chosen


def check_faults(faults: Sequence[FaultConfig], model: Layer) -> None:
    """Refuse faults that could not be injected."""
    names = [n for n, p in model.named_parameters() if not p.stop_gradient]
    for fault in faults:
        if fault.tensor is not None:
            _matching(fault.kind, fault.tensor, names)


def _corrupted(tensor: Tensor, fault: Fault, part: int) -> np.ndarray:
    """Return the tensor's values with the fault, in NumPy's matching type.

    NumPy has no bfloat16: Paddle gives its bits as uint16.
    """
    import paddle

    if fault.config.magnitude is not None:
        wide = tensor.detach().astype("float64")
        factor: float | Tensor = fault.config.magnitude
        if fault.kind == "gradient_noise":
            noise = fault.step_rng(part).normal(size=wide.shape)
            size = wide.square().mean().sqrt() * factor
            wide, factor = wide + size * paddle.to_tensor(noise), 1.0
        return (wide * factor).astype(tensor.dtype).numpy()
    values = np.array(tensor.numpy())
    if values.size:
        dtype = str(tensor.dtype).split(".")[-1]
        bits = values.reshape(-1).view(_LAYOUT[dtype][0])
        rng = fault.step_rng(part)
        element = int(rng.integers(bits.size))
        bits[element] = _corrupted_bits(int(bits[element]), dtype, fault, rng)
    return values


def _corrupted_bits(
    bits: int, dtype: str, fault: Fault, rng: np.random.Generator
) -> int:
    _, num_mantissa = _LAYOUT[dtype]
    infinity = ((1 << _NUM_EXPONENT) - 1) << num_mantissa
    if fault.kind.endswith("nan"):
        return infinity | 1 << num_mantissa - 1
    exponent_bit = fault.config.exponent_bit
    if exponent_bit is None:
        exponent_bit = int(rng.integers(_NUM_EXPONENT))
    return bits ^ 1 << num_mantissa + exponent_bit
