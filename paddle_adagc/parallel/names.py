# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keys of a model's parameters: the same under every parallel layout.

They are the structured names of the whole model in one piece. A model's
``state_dict()`` is asked only where it translates the names of a pipeline
stage: elsewhere it may hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor

_EXPERT = re.compile(r"(?<=\.mlp\.experts\.)\d+(?=\.)")


def parameter_keys(model: Any) -> dict[str, str]:
    """Return the key of each parameter, by Paddle's name of it.

    Names of a bare ``PipelineLayer`` begin with the global index of a layer,
    which virtual stages nest in chunks.
    """
    named: Iterable[tuple[str, Any]] = model.named_parameters()
    if hasattr(model, "get_num_virtual_stages"):
        if hasattr(model, "_pp_to_single_mapping"):
            named = model.state_dict().items()
        elif model.get_num_virtual_stages() > 1:
            named = [(_without_chunk(name), p) for name, p in named]
    named = [(key, p) for key, p in named if isinstance(p, Tensor)]
    keys = _with_global_experts(model, [key for key, _ in named])
    # Of several names the first one counts.
    pairs = zip(reversed(named), reversed(keys), strict=True)
    return {parameter.name: key for (_, parameter), key in pairs}


def _without_chunk(name: str) -> str:
    first, second, *rest = name.split(".")
    if not (first.isdigit() and second.isdigit()):
        return name
    return ".".join([str(int(first) + int(second)), *rest])


def _with_global_experts(model: Any, keys: list[str]) -> list[str]:
    """Return the keys with the numbers that experts have in the whole model.

    ``ernie_pretrain`` of PaddleFormers numbers the experts of every
    expert-parallel rank from 0, so that ``mlp.experts.0`` is a different expert
    on each. Nothing changes for a model without ``config.moe_rank``, or whose
    experts have global numbers already.
    """
    config: Any = getattr(model, "config", None)
    rank = getattr(config, "moe_rank", None) or 0
    numbers = {number for key in keys for number in _EXPERT.findall(key)}
    if rank < 1 or "0" not in numbers:
        return keys
    num_ranks = getattr(config, "moe_world_size", None) or 1
    first = rank * (config.moe_num_experts // num_ranks)
    return [_EXPERT.sub(lambda m: str(int(m[0]) + first), key) for key in keys]


def tied_keys(layers: Iterable[Any]) -> dict[str, str | None]:
    """Parameters that an earlier stage holds as well, and their keys there.

    ``is_firstly_shared``, fleet's own mark, is never set in paddle 3.3.1.
    """
    found: dict[str, str | None] = {}
    for pipe in layers:
        if not isinstance(getattr(pipe, "shared_comm", None), dict):
            continue
        names = {id(layer): name for name, layer in pipe.shared_layers.items()}
        for comm in pipe.shared_comm.values():
            if min(comm["ranks"]) == dist.get_rank():
                continue
            layer = comm["layer"]
            for attribute in comm["weight_attr"]:
                first = _first_keys(pipe, names[id(layer)], attribute)
                tensors = _shared_tensors(layer, attribute)
                for i, tensor in enumerate(tensors):
                    found[tensor.name] = first[i] if first else None
    return found


def _shared_tensors(layer: Any, attribute: str) -> list[Tensor]:
    """Return what a layer shares: a tensor, or pairs of name and tensor."""
    shared = getattr(layer, attribute)
    return [shared] if isinstance(shared, Tensor) else [t for _, t in shared]


def _first_keys(model: Any, shared_name: str, attribute: str) -> list[str]:
    """Keys that PaddleNLP's pipelines give tied tensors on an earlier stage."""
    if not hasattr(model, "get_sequential_name_prefixes"):
        return []
    index, description = next(
        (index, description)
        for index, description in enumerate(model._layers_desc)
        if hasattr(description, "shared_weight_attr")
        and description.layer_name == shared_name
    )
    with paddle.LazyGuard(), paddle.utils.unique_name.guard():
        layer = description.build_layer()
    prefix = model.get_sequential_name_prefixes()[str(index)]
    names = {id(tensor): name for name, tensor in layer.named_parameters()}
    return [
        f"{prefix}.{names[id(tensor)]}".lstrip(".")
        for tensor in _shared_tensors(layer, attribute)
    ]
