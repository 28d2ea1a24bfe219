# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults of gradients and activations.

A test tool: bits are changed in a copy on the host, which waits for the
device. Nothing happens, and nothing waits, at steps without a fault.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from paddle_adagc.checks import suggestion
from paddle_adagc.lab.faults.config import Fault, FaultConfig

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.nn import Layer

_LAYOUT = {
    "float64": (np.uint64, 52, 11),
    "float32": (np.uint32, 23, 8),
    "bfloat16": (np.uint16, 7, 8),
    "float16": (np.uint16, 10, 5),
}
"""Unsigned integer of the same size, mantissa bits, exponent bits."""


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
    chosen = _choose(fault, parameters, sorted(parameters))
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


@contextlib.contextmanager
def activation_fault(fault: Fault, model: Layer) -> Iterator[list[str]]:
    """Corrupt the outputs of sublayers while the context is open.

    Every call of a chosen sublayer in the context is corrupted alike, so
    recomputation in the backward pass sees the same fault. Of several outputs
    the first floating-point tensor is hit. The gradient passes through
    unchanged: the fault is in the stored values. Yields the names of the
    sublayers hit so far, in the order of their first call.
    """
    layers = dict(model.named_sublayers())
    leaves = sorted(name for name in layers if not layers[name].sublayers())
    hit: list[str] = []
    handles = [
        layers[name].register_forward_post_hook(_hook(fault, name, part, hit))
        for part, name in enumerate(_choose(fault, layers, leaves))
    ]
    try:
        yield hit
    finally:
        for handle in handles:
            handle.remove()


def _choose(
    fault: Fault, names: Collection[str], drawable: list[str]
) -> list[str]:
    """Return the sorted names that are hit: the chosen ones, or one drawn."""
    if fault.config.tensor is not None:
        return matching_names(fault.config, names)
    if not drawable:
        raise ValueError(f"the model has nothing for {fault.kind} to hit")
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
    for fault in faults:
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


def _hook(
    fault: Fault, name: str, part: int, hit: list[str]
) -> Callable[[Any, Any, Any], Any]:
    def hook(layer: Any, inputs: Any, output: Any) -> Any:
        outputs = list(output) if isinstance(output, tuple | list) else [output]
        for i, value in enumerate(outputs):
            if _dtype(value) in _LAYOUT:
                outputs[i] = _straight_through().apply(
                    value, lambda x: _corrupted(x, fault, part)
                )
                if name not in hit:
                    hit.append(name)
                break
        if isinstance(output, tuple):
            return tuple(outputs)
        return outputs if isinstance(output, list) else outputs[0]

    return hook


@functools.cache
def _straight_through() -> Any:
    """Operator ``(x, f)`` with the value ``f(x)`` and the gradient of x."""
    import paddle

    class StraightThrough(paddle.autograd.PyLayer):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, f: Callable[..., np.ndarray]
        ) -> Tensor:
            output = paddle.empty_like(x)
            output.set_value(f(x))
            return output

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    return StraightThrough


def _dtype(value: Any) -> str:
    """``"float32"`` and so on; "" if it has no dtype."""
    return str(getattr(value, "dtype", "")).split(".")[-1]


def _corrupted(tensor: Tensor, fault: Fault, part: int) -> np.ndarray:
    """Return the tensor's values with the fault, in NumPy's matching type.

    NumPy has no bfloat16: Paddle gives its bits as uint16.
    """
    if fault.config.magnitude is not None:
        wide = tensor.detach().astype("float64") * fault.config.magnitude
        return wide.astype(tensor.dtype).numpy()
    values = np.array(tensor.numpy())
    if values.size:
        dtype = _dtype(tensor)
        bits = values.reshape(-1).view(_LAYOUT[dtype][0])
        rng = fault.step_rng(part)
        element = int(rng.integers(bits.size))
        bits[element] = _corrupted_bits(int(bits[element]), dtype, fault, rng)
    return values


def _corrupted_bits(
    bits: int, dtype: str, fault: Fault, rng: np.random.Generator
) -> int:
    _, num_mantissa, num_exponent = _LAYOUT[dtype]
    infinity = ((1 << num_exponent) - 1) << num_mantissa
    if fault.kind.endswith("inf"):
        return infinity
    if fault.kind.endswith("nan"):
        return infinity | 1 << num_mantissa - 1
    exponent_bit = fault.config.exponent_bit
    if exponent_bit is None:
        exponent_bit = int(rng.integers(num_exponent))
    if exponent_bit >= num_exponent:
        raise ValueError(
            f"exponent_bit {exponent_bit} is not in the {num_exponent} "
            f"exponent bits of {dtype}"
        )
    return bits ^ 1 << num_mantissa + exponent_bit
