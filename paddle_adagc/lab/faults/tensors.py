# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults of gradients.

A test tool: bits are changed in a copy on the host, which waits for the
device. Nothing happens, and nothing waits, at steps without a fault.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paddle_adagc.checks import suggestion
from paddle_adagc.lab.faults.config import Fault, FaultConfig

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.nn import Layer

_LAYOUT = {"float32": (np.uint32, 23), "bfloat16": (np.uint16, 7)}
"""Unsigned integer of the same size, mantissa bits."""

_NUM_EXPONENT = 8


def apply_to_gradients(
    fault: Fault, named_parameters: Iterable[tuple[str, Tensor]]
) -> list[str]:
    """Corrupt gradients in place, between backward and the optimizer step.

    The gradient is ``main_grad`` where the parameter has one, else ``grad``.
    The choice by the seed is among all trainable parameters, by name: it does
    not depend on which of them have a gradient. Gives the sorted names hit.
    """
    import paddle

    parameters = {
        name: parameter
        for name, parameter in named_parameters
        if not parameter.stop_gradient
    }
    hit = []
    chosen = _choose(fault, parameters)
    for part, name in enumerate(chosen):
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
        return matching_names(fault.config, names)
    if not names:
        raise ValueError(f"the model has nothing for {fault.kind} to hit")
    drawable = sorted(names)
    return [drawable[int(fault.burst_rng().integers(len(drawable)))]]


def matching_names(fault: FaultConfig, names: Collection[str]) -> list[str]:
    """Return the sorted names that ``tensor`` (name or pattern) selects."""
    pattern = fault.tensor
    assert pattern is not None
    if pattern in names:
        return [pattern]
    chosen = sorted(n for n in names if fnmatch.fnmatchcase(n, pattern))
    if not chosen:
        raise ValueError(
            f"{fault.kind}: nothing in the model matches tensor={pattern!r}"
            f"{suggestion(pattern, names)}"
        )
    return chosen


def check_faults(faults: Sequence[FaultConfig], model: Layer) -> None:
    """Refuse faults that could not be injected."""
    names = [
        name
        for name, parameter in model.named_parameters()
        if not parameter.stop_gradient
    ]
    for fault in faults:
        if fault.tensor is not None:
            matching_names(fault, names)


def _corrupted(tensor: Tensor, fault: Fault, part: int) -> np.ndarray:
    """Return the tensor's values with the fault, in NumPy's matching type.

    NumPy has no bfloat16: Paddle gives its bits as uint16.
    """
    if fault.config.magnitude is not None:
        wide = tensor.detach().astype("float64") * fault.config.magnitude
        return wide.astype(tensor.dtype).numpy()
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
    if fault.kind.endswith("inf"):
        return infinity
    if fault.kind.endswith("nan"):
        return infinity | 1 << num_mantissa - 1
    exponent_bit = fault.config.exponent_bit
    if exponent_bit is None:
        exponent_bit = int(rng.integers(_NUM_EXPONENT))
    return bits ^ 1 << num_mantissa + exponent_bit
