# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each tensor's layout, read from the model before fleet wraps anything.

Fleet's sharding V2 replaces the parameters by slices that keep their names but
lose their marks, so the marks are read from the model. Auto-parallel says how a
tensor lies over a mesh of processes, and fleet's ``fuse_optimizer`` joins
several tensors in one buffer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor, _C_ops
from paddle.distributed.fleet.meta_parallel.meta_parallel_base import (
    MetaParallelBase,
)
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_stage2,
    group_sharded_stage3,
)
from paddle.distributed.fleet.utils.mix_precision_utils import MixPrecisionLayer

from paddle_adagc.parallel.topology import Topology
from paddle_adagc.parallel.units import (
    MARK,
    Declared,
    Unit,
    as_units,
    read_units,
)

Ranks = tuple[int, ...]

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

    ranks: Ranks  # all ranks of the mesh
    groups: tuple[tuple[int, Ranks], ...] = ()
    """For each mesh dimension on which the placement is ``Shard``: its index
    and the ranks along it, this one among them. None on a rank outside of the
    mesh, and for a dimension of one rank."""


_spreads: dict[tuple[Ranks, Ranks, str], Spread] = {}


def spread_of(tensor: Tensor) -> Spread | None:
    """Where a tensor lies; None: it is no ``DistTensor``."""
    if not tensor.is_dist():
        return None
    mesh, placements = tensor.process_mesh, tensor.placements
    key = (tuple(mesh.process_ids), tuple(mesh.shape), str(placements))
    if key not in _spreads:
        ranks = np.reshape(mesh.process_ids, mesh.shape)
        _spreads[key] = _read(ranks, placements, dist.get_rank())
    return _spreads[key]


def _read(ranks: np.ndarray, placements: list[Any], rank: int) -> Spread:
    groups = []
    place = np.argwhere(ranks == rank)
    for axis, placement in enumerate(placements if len(place) else ()):
        if placement.is_shard() and ranks.shape[axis] > 1:
            line: list[Any] = [*place[0]]
            line[axis] = slice(None)
            groups.append((axis, tuple(ranks[tuple(line)].tolist())))
    return Spread(tuple(ranks.flatten().tolist()), tuple(groups))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorLayout:
    """How one parameter of the model lies over the ranks."""

    key: str  # name of the logical tensor, the same under every parallel layout
    is_tp_split: bool = False
    """Each tensor-parallel rank holds another part (``is_distributed``)."""

    is_expert: bool = False
    """Its gradient is not averaged over the ranks that hold other experts."""

    is_expert_on_tp_axis: bool = False
    """Its marks say, or cannot exclude, that tensor-parallel ranks hold other
    experts."""

    is_tied_copy: bool = False
    """An earlier pipeline stage holds the same tensor and counts it."""

    shape: tuple[int, ...] = ()  # this rank's part, before sharding
    split_axis: int | None = None  # axis that tensor-parallel ranks split
    is_embedding: bool = False
    """Its rows are looked up, rather than multiplied: the weight of an
    embedding layer, or a parameter with the mark ``is_embedding``."""

    takes_part: bool = True  # it is trained, and not kept from being clipped
    is_whole: bool = False
    """Sharding stage 3 leaves it in one piece on every rank."""

    spread: Spread | None = None
    """Its place on a mesh of auto-parallel; ``shape`` is then the whole's."""

    is_split_over_experts: bool = False
    """Each expert-parallel rank holds a part of every expert (layers with
    ``intermediate_ep_sharded``)."""

    units: tuple[Unit, ...] = ()
    """The paper's tensors in it; none: it is one itself."""


def read_layout(model: paddle.nn.Layer) -> dict[str, TensorLayout]:
    """Layout of every parameter of this rank, by the parameter's name.

    In the wrapper of sharding stage 3, by the name of the parameter's slice.
    The order is that of ``named_parameters()``, which all ranks of a
    tensor-parallel and of a sharding group share.

    Raises:
        TypeError: ``model`` is no layer.
        ValueError: Two parameters have the same key or the same name.
    """
    if not isinstance(model, paddle.nn.Layer):
        raise TypeError(
            f"{type(model).__name__} is no paddle.nn.Layer: bind the network "
            "itself"
        )
    is_stage_3 = isinstance(sharding_wrapper(model), _SHARDING_WRAPPERS[1])
    model = unwrap(model)
    layers = model.sublayers(include_self=True)
    keys = {tensor.name: key for key, tensor in _named_tensors(model)}
    tied_copies = _tied_copies(layers)
    embeddings = {
        layer.weight.name
        for layer in layers
        if isinstance(layer, paddle.nn.Embedding)
        or type(layer).__name__ == "VocabParallelEmbedding"
    }
    split_over_experts = {
        parameter.name
        for layer in layers
        if getattr(layer, "intermediate_ep_sharded", False)
        for parameter in layer.parameters(include_sublayers=False)
    }
    layout: dict[str, TensorLayout] = {}
    seen: set[str] = set()
    for name, parameter in model.named_parameters():
        own_name = parameter.name
        is_sliced = is_stage_3 and hasattr(parameter, "fw_storage")
        listed = _STAGE_3_PREFIX + own_name if is_sliced else own_name
        if listed in layout:
            raise ValueError(
                f"two parameters are called {own_name!r}: make both "
                "models under one paddle.utils.unique_name.guard()"
            )
        key = tied_copies.get(own_name) or keys.get(own_name, name)
        if key in seen:
            raise ValueError(f"two parameters have the key {key!r}")
        seen.add(key)
        is_tp_split = bool(getattr(parameter, "is_distributed", False))
        layout[listed] = TensorLayout(
            key=key,
            is_tp_split=is_tp_split,
            is_expert=is_expert(parameter),
            is_expert_on_tp_axis=_is_expert_on_tp_axis(parameter),
            is_tied_copy=own_name in tied_copies,
            shape=tuple(parameter.shape),
            split_axis=split_axis_of(parameter) if is_tp_split else None,
            is_embedding=own_name in embeddings
            or bool(getattr(parameter, "is_embedding", False)),
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
    layout: Mapping[str, TensorLayout],
    model: paddle.nn.Layer,
    declared: Declared | None,
    topology: Topology | None,
) -> dict[str, TensorLayout]:
    """Return the layout with the units of each parameter, which get a mark.

    Refuses those of a tensor on a mesh; see also :func:`.units.read_units`.
    """
    model = unwrap(model)
    parameters = {p.name: p for p in model.parameters()}
    known = {
        name: (t.key, parameters[name.removeprefix(_STAGE_3_PREFIX)])
        for name, t in layout.items()
    }
    config = getattr(getattr(model, "config", None), "__dict__", {})
    units = read_units(
        [(*known[name], tensor.is_expert) for name, tensor in layout.items()],
        declared,
        config,
    )
    made = {}
    for name, tensor in layout.items():
        key, parameter = known[name]
        if key in units:
            setattr(parameter, MARK, units[key])  # for Muon
            if tensor.spread is not None:
                raise ValueError(
                    f"{key} holds units, and lies on a mesh of "
                    "auto-parallel, which the clip does not split: use fleet's "
                    "parallelism, or a parameter for each unit"
                )
            first = _first_expert(tensor, topology)
            found = units[key].of(key, tensor.shape, first)
            tensor = dataclasses.replace(tensor, units=found)
        made[name] = tensor
    return made


def _first_expert(tensor: TensorLayout, topology: Topology | None) -> int:
    """Global number of the first expert that a rank holds."""
    if (
        topology is None
        or not tensor.is_expert
        or tensor.is_split_over_experts
        or not tensor.shape
    ):
        return 0
    has_groups = topology.has_expert_groups
    axis = topology.expert if has_groups else topology.data
    return axis.rank * tensor.shape[0]


def units_of(parameter: Tensor) -> tuple[Unit, ...]:
    """Units of a parameter that ``bind`` or its user has marked.

    A parameter with three axes that is marked as an expert holds experts.
    """
    mark = getattr(parameter, MARK, None)
    if mark is None and parameter.ndim == 3 and is_expert(parameter):
        mark = "experts"
    name = parameter.name
    return as_units(name, mark).of(name, parameter.shape) if mark else ()


def shuffling_layers(
    model: paddle.nn.Layer,
) -> list[tuple[str, paddle.nn.Layer]]:
    """Find layers that may interleave the parts of their experts for a while.

    PaddleFleet's ``SonicMoEExpert``, known by ``_weights_layout``. Returns the
    name of a parameter with parts, and its layer.
    """
    return [
        (f"{name}.{leaf}", layer)
        for name, layer in unwrap(model).named_sublayers(include_self=True)
        if hasattr(layer, "_weights_layout")
        for leaf, parameter in layer.named_parameters(include_sublayers=False)
        if as_units(leaf, getattr(parameter, MARK, "experts")).parts
    ]


def refuse_shuffled(layers: Iterable[tuple[str, paddle.nn.Layer]]) -> None:
    """Refuse :func:`shuffling_layers` that interleave parts now."""
    for name, layer in layers:
        if layer._weights_layout == "sonic":
            raise ValueError(
                f"{name} interleaves gate and up now (_weights_layout='sonic'),"
                " so that units with parts would mix them: call its layer's "
                "convert_weights_to_grouped_layout() before the optimizer's "
                "step, as PaddleFleet's Trainer does, or give units='experts'"
            )


def refuse_freed(what: str, parameter: Tensor) -> None:
    """Refuse a parameter without memory, whose values ``what`` reads."""
    has_memory = parameter.is_dist() or parameter._is_initialized()
    if not has_memory and 0 not in parameter.shape:
        raise ValueError(
            f"{what} reads the weights of {parameter.name}, whose memory is "
            "freed (PaddleFleet's FP8 does so: clear_param_storage, "
            "clear_origin_weight_when_offline_quant): keep the weights, or "
            "use a clip of gradients, such as ClipGradByAdaGC"
        )


def refuse_stage_3(what: str, names: Iterable[str]) -> None:
    """Refuse slices that sharding stage 3 makes, by their names.

    ``what`` is the optimizer or clip that works on them.
    """
    for name in names:
        if name.startswith(_STAGE_3_PREFIX):
            raise ValueError(
                f"{name!r} is a slice of sharding stage 3, which {what} does "
                "not work with: use stage 1"
            )


def refuse_unbound_slice(name: str) -> None:
    """Refuse a slice of stage 3 that a clip knows nothing of."""
    if name.startswith(_STAGE_3_PREFIX):
        raise ValueError(
            f"{name!r} is a slice of sharding stage 3: call clip.bind(model) "
            "with the model that group_sharded_parallel returned"
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


def _named_tensors(model: Any) -> list[tuple[str, Tensor]]:
    """Names by which the model saves its tensors.

    PaddleNLP's pipeline models save under the names of the model in one piece;
    a bare ``PipelineLayer`` under the global index of each layer, which virtual
    stages nest in chunks. PaddleFleet has such a class of its own, so it is
    known by what it has.
    """
    is_bare_pipeline = hasattr(model, "get_num_virtual_stages") and (
        not hasattr(model, "_pp_to_single_mapping")
    )
    if not is_bare_pipeline:
        return [*reversed(model.state_dict().items())]
    has_chunks = model.get_num_virtual_stages() > 1
    named = []
    for name, parameter in model.named_parameters():
        first, second, *rest = name.split(".")
        if has_chunks and first.isdigit() and second.isdigit():
            name = ".".join([str(int(first) + int(second)), *rest])
        named.append((name, parameter))
    return named


def split_axis_of(parameter: Tensor) -> int | None:
    """Axis of a tensor-parallel part, not negative; None: it does not say."""
    if parameter.ndim == 1:
        return 0
    axis = getattr(parameter, "split_axis", None)
    if axis is None:  # as PaddleFleet and Megatron call it
        axis = getattr(parameter, "partition_dim", None)
    return None if axis is None else int(axis) % parameter.ndim


def is_expert(parameter: Tensor) -> bool:
    """Whether a parameter is marked as another one on every rank.

    The marks: ``no_sync``, ``expert``, ``mp_moe``, or the color
    ``"moe_expert"`` or ``"moe_weight_no_hook"``.
    """
    return _has_expert_color(parameter) or any(
        getattr(parameter, mark, False)
        for mark in ("expert", "no_sync", "mp_moe")
    )


def _is_expert_on_tp_axis(parameter: Tensor) -> bool:
    """Look for ``mp_moe``, or PaddleFormers' marks of such experts."""
    is_synced = getattr(parameter, "no_sync", None) is False
    is_colored = _has_expert_color(parameter)
    return bool(getattr(parameter, "mp_moe", False)) or (
        is_colored and is_synced
    )


def _has_expert_color(parameter: Tensor) -> bool:
    color: Any = getattr(parameter, "color", None)
    return isinstance(color, dict) and color.get("color") in _EXPERT_COLORS


def _tied_copies(layers: Iterable[Any]) -> dict[str, str | None]:
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
            for attribute in comm["weight_attr"]:
                name = names[id(comm["layer"])]
                tensors = _shared_tensors(comm["layer"], attribute)
                for i, tensor in enumerate(tensors):
                    found[tensor.name] = _first_key(pipe, name, attribute, i)
    return found


def _shared_tensors(layer: Any, attribute: str) -> list[Tensor]:
    """Return what a layer shares: a tensor, or pairs of name and tensor.

    PaddleFleet's ``mtp_shared_last_layer`` shares a whole layer so.
    """
    shared = getattr(layer, attribute)
    if isinstance(shared, Tensor):
        return [shared]
    return [tensor for _, tensor in shared]


def _first_key(
    model: Any, shared_name: str, attribute: str, i: int
) -> str | None:
    """Key of a tied tensor in the first of its layers, on an earlier stage.

    PaddleNLP's pipeline models name a tied head differently there. None for
    others, which name every layer by its global index.
    """
    if not hasattr(model, "get_sequential_name_prefixes"):
        return None
    index, description = next(
        (index, description)
        for index, description in enumerate(model._layers_desc)
        if hasattr(description, "shared_weight_attr")
        and description.layer_name == shared_name
    )
    with paddle.LazyGuard(), paddle.utils.unique_name.guard():
        layer = description.build_layer()
    tensor = _shared_tensors(layer, attribute)[i]
    prefix = model.get_sequential_name_prefixes()[str(index)]
    return next(
        f"{prefix}.{name}".lstrip(".")
        for name, parameter in layer.named_parameters()
        if parameter is tensor
    )


class FusedBuffers:
    """Finds a model's parameters in the buffers that an optimizer works on."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._parameters = list(parameters)
        # By a buffer's address: parameters and their first elements in it.
        self._members: dict[int, list[tuple[Tensor, int]]] = {}

    def unfold(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        known: Container[str],
    ) -> list[tuple[Tensor, Tensor]]:
        """Replace each buffer by the tensors in it, as views into gradients.

        ``known`` are the names of the parameters that are no buffers.
        """
        unfolded = []
        for parameter, gradient in pairs:
            members = [] if parameter.name in known else self._find(parameter)
            if not members:
                unfolded.append((parameter, gradient))
            for member, start in members:
                end = start + math.prod(member.shape)
                piece = _C_ops.view_slice(gradient, start, end)
                unfolded.append(
                    (member, _C_ops.view_shape(piece, member.shape))
                )
        return unfolded

    def _find(self, buffer: Tensor) -> list[tuple[Tensor, int]]:
        first = buffer.data_ptr()
        if first not in self._members:
            size = buffer.element_size()
            last = first + math.prod(buffer.shape) * size
            self._members[first] = [
                (parameter, (parameter.data_ptr() - first) // size)
                for parameter in self._parameters
                if first <= parameter.data_ptr() < last
            ]
        return self._members[first]
