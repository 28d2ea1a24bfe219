# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's tensors in a recipe: its key ``units``.

Under ``fuse_attn_ffn`` PaddleFormers keeps q, k and v in ``qkv_proj``, gate and
up of every expert in ``up_gate_proj``, in this order along the last axis. The
recipe says so, and the clip then follows each by itself
(:mod:`paddle_adagc.parallel.units`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from adagc_lab.paddleformers.recipe import (
    ERNIE,
    is_recipe,
    load_recipe,
    model_settings,
)
from paddle_adagc.parallel.units import Units, read_units

_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "up_gate_proj"),
}
"""Our decoder's layer -> PaddleFormers' under ``fuse_attn_ffn``."""


class Followed(NamedTuple):
    """What a clip follows of a model in PaddleFormers."""

    parameters: int  # PaddleFormers' own
    tensors: int  # each has a norm and a gamma; units count apart
    tensors_without_routers: int  # the paper's count

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, in which the clip follows "
            f"{self.tensors:,} tensors, {self.tensors_without_routers:,} "
            "without routers"
        )


def check_units(recipe: Mapping[str, Any]) -> None:
    """Refuse a recipe's ``units`` that its model's tensors contradict."""
    if recipe["stage"] != ERNIE or not recipe.get("units"):
        return
    model = model_settings(recipe)
    if not model.get("fuse_attn_ffn", False):
        raise ValueError(
            "units without fuse_attn_ffn: q, k, v, gate and up are parameters "
            "of their own, so give units=null"
        )
    if model.get("num_key_value_heads") in (None, model["num_attention_heads"]):
        raise ValueError(
            f"num_key_value_heads={model.get('num_key_value_heads')}, as many "
            "as attention heads: PaddleFormers then mixes q, k and v in "
            "qkv_proj head by head, which units cannot tell apart. Give fewer, "
            "or fuse_attn_ffn=false and units=null"
        )


def followed(
    path: str | os.PathLike[str],
    overrides: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
) -> Followed | None:
    """Count what a clip follows in a recipe's run; None for another config.

    ``shapes`` are those of our decoder's parameters by name, ``[in, out]``.
    Units that do not fit the model are refused.
    """
    if not is_recipe(path):
        return None
    with warnings.catch_warnings():  # read_run_config said it
        warnings.simplefilter("ignore")
        recipe = load_recipe(path, overrides)
    check_units(recipe)
    model = model_settings(recipe)
    if model.get("fuse_attn_ffn", False):
        shapes = _fused(shapes)
    without_memory: Any = [
        (key, np.broadcast_to(np.float32(), shape), False)
        for key, shape in shapes.items()
    ]
    units: dict[str, Units] = read_units(
        without_memory, recipe.get("units"), model
    )
    keys: list[str] = []
    for key, shape in shapes.items():
        made = units[key].of(key, shape) if key in units else ()
        keys += [unit.key for unit in made] or [key]
    routers = sum(".mlp.gate." in key for key in keys)
    return Followed(len(shapes), len(keys), len(keys) - routers)


def _fused(shapes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Convert our decoder's shapes to those under ``fuse_attn_ffn``."""
    fused: dict[str, Sequence[int]] = {}
    for key, shape in shapes.items():
        *head, module, leaf = key.split(".")
        name = ".".join([*head, _FUSED.get(module, module), leaf])
        width = fused[name][-1] if name in fused else 0
        fused[name] = (*shape[:-1], shape[-1] + width)
    return fused
