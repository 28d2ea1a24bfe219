# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units that follow the slices of PaddleFleet's Muon.

Its layers say in ``muon_slice_specs`` into which matrices Muon cuts their
parameters: ``{relative name: (function, keyword arguments)}``. The function
takes the parameter and what orthogonalises a matrix. Here it is called with
the numbers of the elements, and what it cuts is read off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.parallel.units import Units

_OVER_RANKS = "ortho_ep_full_intermediate"
"""It gathers experts whose inner axis the ranks share, and talks to them."""

_GATE_UP = "ortho_gate_up"
"""Tensor-parallel ranks hold parts of its slices; of others, other heads."""


def muon_units(
    model: paddle.nn.Layer, options: Mapping[str, Any]
) -> Callable[[str, Tensor], Units | None]:
    """Return the ``units`` of ``bind`` that are Muon's slices.

    Args:
        model: Its layers may have a method ``muon_slice_specs``.
        options: The Trainer's, such as ``{"muon_qkv_update_mode":
            "split_head", "muon_ffn_split": True}``.
    """
    found: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {}
    for layer in model.sublayers(include_self=True):
        if hasattr(layer, "muon_slice_specs"):
            specs = layer.muon_slice_specs(options)
            for name, parameter in layer.named_parameters():
                if name in specs:
                    found[parameter.name] = specs[name]

    def declared(key: str, parameter: Tensor) -> Units | None:
        if parameter.name not in found:
            return None
        function, arguments = found[parameter.name]
        has_experts = parameter.ndim == 3
        if function.__name__ == _OVER_RANKS:
            is_cut = arguments.get("gate_up", False)
            is_cut = is_cut and arguments.get("split_gate_up", True)
            return Units(experts=True, parts=["0", "1"] if is_cut else ())
        axis, widths = _cuts(key, parameter.shape, function, arguments)
        if len(widths) == 1:
            return Units(experts=True) if has_experts else None
        is_tp_split = getattr(parameter, "is_distributed", False)
        if is_tp_split and not has_experts and function.__name__ != _GATE_UP:
            raise ValueError(
                f"{key}: Muon's {len(widths)} slices are other heads on every "
                "tensor-parallel rank, which one key cannot name: give units "
                "of your own, or muon_qkv_update_mode other than 'split_head'"
            )
        parts = {str(i): width for i, width in enumerate(widths)}
        if has_experts:
            return Units(experts=True, parts=parts, axis=axis)
        *_, module, leaf = ["", *key.rsplit(".", 2)]
        name = f"{module}.{{part}}.{leaf}".lstrip(".")
        return Units(parts=parts, axis=axis, key=name)

    return declared


def _cuts(
    key: str,
    shape: list[int],
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> tuple[int, list[int]]:
    """Return the axis that the function cuts, and the slices' widths."""
    *experts, rows, columns = shape
    numbers = np.arange(rows * columns, dtype="float64").reshape(rows, columns)
    slices: list[np.ndarray] = []

    def record(matrix: Tensor) -> Tensor:
        slices.append(matrix.numpy().reshape(matrix.shape[-2:]))
        return matrix

    one = numbers.reshape([1] * len(experts) + [rows, columns])
    function(
        paddle.to_tensor(one, place=paddle.CPUPlace()), record, **arguments
    )
    slices.sort(key=lambda part: float(part[0, 0]))
    for axis in (-1, -2):
        if slices and np.array_equal(np.concatenate(slices, axis), numbers):
            return axis, [part.shape[axis] for part in slices]
    raise ValueError(
        f"{key}: Muon's slices by {function.__name__} are no neighbours along "
        "an axis: give units of your own (of 'split_qkv' with repeats=True)"
    )
