# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each tensor's layout, read from the model before fleet wraps anything.

Fleet's sharding V2 replaces the parameters by slices that keep their names but
lose their marks, so the marks are read from the model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.distributed.fleet.meta_parallel.meta_parallel_base import (
    MetaParallelBase,
)
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_stage2,
    group_sharded_stage3,
)
from paddle.distributed.fleet.utils.mix_precision_utils import MixPrecisionLayer

from paddle_adagc.parallel.names import parameter_keys, tied_keys
from paddle_adagc.parallel.topology import Topology
from paddle_adagc.parallel.units import (
    MARK,
    Declared,
    Unit,
    Units,
    read_units,
    view_of,
)

RankIds = tuple[int, ...]

_EXPERT_COLORS = ("moe_expert", "moe_weight_no_hook")
_WRAPPERS = (paddle.DataParallel, MetaParallelBase, MixPrecisionLayer)
_SHARDING_WRAPPERS = (
    group_sharded_stage2.GroupShardedStage2,
    group_sharded_stage3.GroupShardedStage3,
)
_STAGE_3_PREFIX = "slice@"


@dataclasses.dataclass(frozen=True)
class Spread:
    """The ranks of a ``DistTensor``'s mesh, and those that hold its parts."""

    ranks: RankIds  # all ranks of the mesh
    groups: tuple[tuple[int, RankIds], ...] = ()
    """Each mesh dimension that splits it, and the ranks along it from here."""


def spread_of(tensor: Tensor) -> Spread | None:
    """Where a tensor lies; None: it is no ``DistTensor``."""
    if not tensor.is_dist():
        return None
    mesh, placements = tensor.process_mesh, tuple(tensor.placements)
    ranks, shape = tuple(mesh.process_ids), tuple(mesh.shape)
    return _spread(ranks, shape, placements, dist.get_rank())


@functools.cache
def _spread(
    ranks: RankIds,
    shape: tuple[int, ...],
    placements: tuple[Any, ...],
    rank: int,
) -> Spread:
    groups = []
    # Paddle takes more placements than the mesh has dimensions.
    for axis, (size, placement) in enumerate(
        zip(shape, placements, strict=False)
    ):
        lines = np.moveaxis(np.reshape(ranks, shape), axis, -1)
        for line in lines.reshape([-1, size]).tolist():
            if placement.is_shard() and size > 1 and rank in line:
                groups.append((axis, tuple(line)))
    return Spread(ranks, tuple(groups))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """How one parameter of the model lies over the ranks."""

    key: str  # name of the logical tensor, the same under every parallel layout
    is_tp_split: bool = False  # tensor-parallel ranks hold different parts
    is_expert: bool = False  # it is marked as one, of which ranks have others
    is_unsynced: bool = False  # data-parallel ranks do not average it
    is_expert_on_tp_axis: bool = False  # those may be tensor-parallel ranks
    has_group: bool = False  # its color names one, over which V2 averages it
    is_tied_copy: bool = False  # an earlier pipeline stage counts it
    shape: tuple[int, ...] = ()  # this rank's part, before sharding
    takes_part: bool = True  # it is trained, and not kept from being clipped
    is_whole: bool = False  # sharding stage 3 leaves it in one piece
    spread: Spread | None = None  # on a mesh; ``shape`` is then the whole's
    is_split_over_experts: bool = False  # over expert-parallel ranks
    units: tuple[Unit, ...] = ()  # the paper's tensors in it; none: it is one
    declared_units: Units | None = None  # how it is cut into ``units``


Layout: TypeAlias = Mapping[str, TensorLayout]
"""By the parameter's name."""


def read_layout(model: paddle.nn.Layer) -> dict[str, TensorLayout]:
    """Layout of every parameter of this rank, by the parameter's name.

    In the wrapper of sharding stage 3, by the name of the parameter's slice.
    The order is that of ``named_parameters()``, which all ranks of a
    tensor-parallel and of a sharding group share.
    """
    if not isinstance(model, paddle.nn.Layer):
        raise TypeError(
            f"{type(model).__name__} is no paddle.nn.Layer: bind the network "
            "itself"
        )
    is_stage_3 = isinstance(sharding_wrapper(model), _SHARDING_WRAPPERS[1])
    model = unwrap(model)
    layers = model.sublayers(include_self=True)
    keys, tied_copies = parameter_keys(model), tied_keys(layers)
    split_over_experts: set[str] = set()
    for layer in layers:
        if getattr(layer, "intermediate_ep_sharded", False):
            own = layer.parameters(include_sublayers=False)
            split_over_experts |= {p.name for p in own}
    layout: dict[str, TensorLayout] = {}
    for name, parameter in model.named_parameters():
        own_name = parameter.name
        is_sliced = is_stage_3 and hasattr(parameter, "fw_storage")
        listed = _STAGE_3_PREFIX + own_name if is_sliced else own_name
        if listed in layout:
            raise ValueError(
                f"two parameters are called {own_name!r}: make both "
                "models under one paddle.utils.unique_name.guard()"
            )
        layout[listed] = TensorLayout(
            key=tied_copies.get(own_name) or keys.get(own_name, name),
            is_tp_split=bool(getattr(parameter, "is_distributed", False)),
            is_expert=is_expert(parameter),
            is_unsynced=bool(getattr(parameter, "no_sync", False)),
            is_expert_on_tp_axis=_is_expert_on_tp_axis(parameter),
            has_group=_color_of(parameter).get("group") is not None,
            is_tied_copy=own_name in tied_copies,
            shape=tuple(parameter.shape),
            takes_part=(
                not parameter.stop_gradient
                and getattr(parameter, "need_clip", True) is not False
            ),
            is_whole=is_stage_3 and not is_sliced,
            spread=spread_of(parameter),
            is_split_over_experts=own_name in split_over_experts,
        )
    return layout


def with_units(
    layout: Layout,
    model: paddle.nn.Layer,
    declared: Declared | None,
    topology: Topology,
) -> dict[str, TensorLayout]:
    """Return the layout with the units of each parameter."""
    model = unwrap(model)
    parameters = {p.name: p for p in model.parameters()}
    marked = [
        (t.key, parameters[name.removeprefix(_STAGE_3_PREFIX)], t.is_expert)
        for name, t in layout.items()
    ]
    config = getattr(getattr(model, "config", None), "__dict__", {})
    found = read_units(marked, declared, config, topology.world)
    axis = topology.expert if topology.has_expert_groups else topology.data
    made = dict(layout)
    for name, tensor in layout.items():
        key, is_expert = tensor.key, tensor.is_expert
        if key not in found:
            continue
        if tensor.spread is not None:
            raise ValueError(
                f"{key} holds units, and lies on a mesh of auto-parallel, "
                "which the clip does not split: use fleet's parallelism, or a "
                "parameter for each unit"
            )
        first = 0  # global number of this rank's first expert
        differs = tensor.is_unsynced or topology.has_expert_groups
        is_part = is_expert and differs and not tensor.is_split_over_experts
        if is_part and tensor.shape:
            first = axis.rank * tensor.shape[0]
        units = found[key].of(key, tensor.shape, first)
        made[name] = dataclasses.replace(
            tensor, units=units, declared_units=found[key]
        )
    _refuse_parts(model, made)
    return made


def _refuse_parts(model: paddle.nn.Layer, layout: Layout) -> None:
    """Refuse parts that do not lie in their parameter as their units say."""
    for layer in model.sublayers(include_self=True):
        joins = getattr(layer, "gather_output", False)
        for parameter in layer.parameters(include_sublayers=False):
            tensor = _find(parameter, layout)
            if tensor is None or tensor.declared_units is None:
                continue
            units = tensor.declared_units
            num_outer = int(units.experts)
            axis = units.axis % (len(tensor.shape) - num_outer) + num_outer
            is_cut = axis == getattr(parameter, "split_axis", None)
            why = ""
            if units.are_parts and hasattr(layer, "_weights_layout"):
                why = (
                    "its layer interleaves gate and up at times (SonicMoE): "
                    "give units='experts'"
                )
            elif joins and tensor.is_tp_split and is_cut and units.parts:
                why = (
                    "its layer joins the outputs of tensor-parallel ranks "
                    "(gather_output=True), so that each has a range of the "
                    "whole, and not its share of every part: use "
                    "gather_output=False, or a parameter for each part"
                )
            if why:
                names = ", ".join([*units.parts, *units.widths])
                raise ValueError(f"{tensor.key} cannot hold {names}: {why}")


def mark_units(model: paddle.nn.Layer, layout: Layout) -> None:
    """Mark the parameters with units, and no others: other clips look."""
    for parameter in unwrap(model).parameters():
        units = getattr(_find(parameter, layout), "declared_units", None)
        if units is not None:
            setattr(parameter, MARK, units)
        elif hasattr(parameter, MARK):
            delattr(parameter, MARK)


def _find(parameter: Tensor, layout: Layout) -> TensorLayout | None:
    name = parameter.name
    return layout.get(name) or layout.get(_STAGE_3_PREFIX + name)


def refuse_unbound_slice(name: str) -> None:
    """Refuse a slice of stage 3 that a clip knows nothing of."""
    if name.startswith(_STAGE_3_PREFIX):
        raise ValueError(
            f"{name!r} is a slice of sharding stage 3: call clip.bind(model) "
            "with the model that group_sharded_parallel returned (fully_shard "
            "is not supported)"
        )


def sharding_wrapper(model: paddle.nn.Layer) -> paddle.nn.Layer | None:
    """Return ``group_sharded_parallel``'s wrapper of the model, if any."""
    while isinstance(model, _WRAPPERS):
        model = model._layers
    return model if isinstance(model, _SHARDING_WRAPPERS) else None


def unwrap(model: paddle.nn.Layer) -> paddle.nn.Layer:
    """Return the model inside of ``DataParallel`` and fleet's wrappers."""
    while isinstance(model, (*_WRAPPERS, *_SHARDING_WRAPPERS)):
        is_sharded = isinstance(model, _SHARDING_WRAPPERS)
        model = model._layer if is_sharded else model._layers
    return model


def is_expert(parameter: Tensor) -> bool:
    """Whether a parameter is marked as an expert, which others may not hold."""
    return _has_expert_color(parameter) or any(
        getattr(parameter, mark, False)
        for mark in ("expert", "no_sync", "mp_moe")
    )


def _is_expert_on_tp_axis(parameter: Tensor) -> bool:
    """Look for ``mp_moe``, or PaddleFormers' marks of such experts."""
    is_synced = getattr(parameter, "no_sync", None) is False
    return bool(getattr(parameter, "mp_moe", False)) or (
        is_synced and _has_expert_color(parameter)
    )


def _has_expert_color(parameter: Tensor) -> bool:
    return _color_of(parameter).get("color") in _EXPERT_COLORS


def _color_of(parameter: Tensor) -> dict[str, Any]:
    color: Any = getattr(parameter, "color", None)
    return color if isinstance(color, dict) else {}


def unfold(
    pairs: Iterable[tuple[Tensor, Any]], parameters: Mapping[str, Tensor]
) -> list[tuple[Tensor, Any]]:
    """Replace buffers that join parameters by these, and views of gradients."""
    addresses = [(p, p.data_ptr()) for p in parameters.values()]
    unfolded = []
    for buffer, gradient in pairs:
        members = []
        if gradient is not None and buffer.name not in parameters:
            first, size = buffer.data_ptr(), buffer.element_size()
            places = [(p, (at - first) // size) for p, at in addresses]
            members = [
                (parameter, view_of(gradient, start, parameter.shape))
                for parameter, start in places
                if 0 <= start < math.prod(buffer.shape)
            ]
        unfolded += members or [(buffer, gradient)]
    return unfolded
