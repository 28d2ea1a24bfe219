# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that another layout can load.

PaddleNLP writes an optimizer file per rank, under Paddle's automatic names, and
the weights of the first data rank. Two things are missing to load them under
another layout, or with experts on several ranks:

- ``layout.json``, written beside them, says which slice of which tensor of
  the whole model each entry of an optimizer file is;
- ``model_state.ep01.pdparams`` and so on hold the experts of the other ranks.

To load, a rank reads every file, one after another, and keeps its own tensors
whole while it cuts out its parts. No rank waits for another.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from ml_dtypes import bfloat16
from paddle import Tensor, nn

from adagc_lab.models import rank_weights
from adagc_lab.models.parallel import topology
from adagc_lab.models.safe_pickle import load_pickle
from adagc_lab.train.config import ParallelConfig
from adagc_lab.train.processes import is_first_process
from paddle_adagc.files import atomic_write_json
from paddle_adagc.integrations.optimizer import innermost
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.parallel.layout import TensorLayout, read_layout, unwrap

LAYOUT = "layout.json"
_OPTIMIZER_FILE = re.compile(r"optimizer[\w.]*\.pdopt")
_MASTER = "master_weights"
_MASTER_SUFFIX = "fp32_master_0"
"""Paddle's ending of the name of a master weight."""


class Piece(NamedTuple):
    """What an entry of an optimizer file is."""

    entry: str  # its name in the file
    key: str  # name of the tensor in the whole model
    quantity: str  # Paddle's accumulator, or "master_weights"
    shape: list[int]  # of the rank's part of the tensor
    begin: int  # first element of the flattened part; -1: one number
    axis: int | None  # that tensor-parallel ranks split
    rank: int  # tensor-parallel
    num_ranks: int  # tensor-parallel ranks that share the tensor


def load_model(model: nn.Layer, checkpoint: Path) -> None:
    """Load a checkpoint of any layout, the weights alone.

    The model is that of this rank, before fleet wraps it. A ValueError names
    weights that are broken, or another model's.
    """
    layout = _layout_by_key(model)
    shapes = {key: _whole_shape(tensor) for key, tensor in layout.items()}
    weights = {
        key: array.astype("float32") if array.dtype == bfloat16 else array
        for key, array in rank_weights.merged_parts(checkpoint, shapes).items()
    }
    inner = unwrap(model)
    mine = {parameter.name for parameter in inner.parameters()}
    buffers = {
        key: tensor
        for key, tensor in inner.state_dict().items()
        if tensor.name not in mine
    }
    shapes |= {key: tuple(buffer.shape) for key, buffer in buffers.items()}
    for key, shape in shapes.items():
        found = weights[key].shape if key in weights else "missing"
        if found != shape:
            raise ValueError(
                f"{checkpoint} holds the weights of another model: {key} is "
                f"{found} and should be {shape}"
            )
    place = topology()
    is_whole = place.pipe.size == place.expert.size == 1
    if is_whole and (unknown := sorted(weights.keys() - shapes.keys())):
        raise ValueError(
            f"{checkpoint} holds the weights of another model: {unknown[0]} is "
            "not in this one"
        )
    rank_weights.load_weights(model, weights)
    for key, buffer in buffers.items():
        buffer.set_value(paddle.to_tensor(weights[key]).astype(buffer.dtype))


def _layout_by_key(model: nn.Layer) -> dict[str, TensorLayout]:
    """Return this rank's tensors by their names in the whole model."""
    return {tensor.key: tensor for tensor in read_layout(model).values()}


def _whole_shape(tensor: TensorLayout) -> tuple[int, ...]:
    """Return the shape of a tensor over all tensor-parallel ranks."""
    num_ranks = topology().model.size if tensor.is_tp_split else 1
    return tuple(
        size * num_ranks if axis == tensor.split_axis else size
        for axis, size in enumerate(tensor.shape)
    )


def save_layout(
    checkpoint: Path,
    parallel: ParallelConfig,
    model: nn.Layer,
    optimizer: Any,
    file_name: str,
) -> None:
    """Write ``layout.json`` and other ranks' experts; every process calls this.

    ``file_name`` is the file that this rank's optimizer state is saved in.
    """
    place = topology()
    if place.expert.rank and not place.moe_sharding.rank:
        layout = _layout_by_key(model)
        experts = {
            key: parameter
            for key, parameter in rank_weights.parameters_by_key(model).items()
            if layout[key].is_expert
        }
        stage = f"pp{place.pipe.rank:02}_" if place.pipe.size > 1 else ""
        name = f"model_state.{stage}ep{place.expert.rank:02}.pdparams"
        paddle.save(experts, str(checkpoint / name))
    files = of_all_ranks({file_name: _pieces(model, optimizer)})
    if is_first_process():
        merged: dict[str, Any] = {}
        for file in reversed(files):  # equal names: data-parallel copies
            merged |= file
        atomic_write_json(
            checkpoint / LAYOUT,
            {"parallel": dataclasses.asdict(parallel), "optimizer": merged},
            indent=None,
        )


def must_reshard(
    checkpoint: Path, parallel: ParallelConfig, model: nn.Layer
) -> bool:
    """Tell whether PaddleNLP cannot load the optimizer's state by itself.

    It goes by Paddle's names, which differ in a fork with other layers.
    """
    saved = _saved_layout(checkpoint)
    if parallel.ep > 1 or saved["parallel"] != dataclasses.asdict(parallel):
        return True
    names = {
        key: parameter.name
        for key, parameter in rank_weights.parameters_by_key(model).items()
    }
    return any(
        not piece.entry.startswith(names.get(piece.key, piece.entry))
        for pieces in saved["optimizer"].values()
        for piece in (Piece(*values) for values in pieces)
    )


def read_optimizer_state(
    checkpoint: Path, model: nn.Layer, optimizer: Any
) -> dict[str, Any]:
    """Cut this rank's optimizer state out of a checkpoint of any layout.

    Model and optimizer may have fleet's wrappers. The optimizer's
    ``set_state_dict`` takes the tensors; the scheduler's state is not there.
    """
    layout = _layout_by_key(model)
    wholes = _read_wholes(checkpoint, layout)
    slices, inner = _slices(optimizer), innermost(optimizer)
    parameters = rank_weights.parameters_by_key(model)
    state: dict[str, Any] = {_MASTER: {}}
    for (key, quantity), whole in wholes.items():
        parameter = parameters[key]
        name = parameter.name
        part = _own_part(whole, layout[key], slices.get(name))
        if part is None:
            continue
        tensor = paddle.to_tensor(part)
        if quantity == _MASTER:
            tensor.name = f"{name}_{_MASTER_SUFFIX}"
            state[_MASTER][name] = tensor
            continue
        if parameter.dtype != paddle.float32 and (
            getattr(inner, "_multi_precision", False)
        ):
            name = f"{name}_{_MASTER_SUFFIX}"
        state[f"{name}_{quantity}_0"] = tensor
    if not state[_MASTER]:
        del state[_MASTER]
    return state


def _saved_layout(checkpoint: Path) -> dict[str, Any]:
    """Read ``layout.json``; refuse one that names other files."""
    file = checkpoint / LAYOUT
    saved = json.loads(file.read_text())
    for name in saved["optimizer"]:
        if not _OPTIMIZER_FILE.fullmatch(name):
            raise ValueError(
                f"{file} is refused: it names {name!r}, which is no "
                "optimizer*.pdopt of this checkpoint"
            )
    return saved


def _slices(optimizer: Any) -> dict[str, tuple[int, int]]:
    """Return begin and end of sharding V2's slices by the parameter's name.

    They count from the parameter's first element; the last slice may end in
    padding. Empty without V2.
    """
    sharding = getattr(optimizer, "_inner_opt", None)
    return {
        name: (
            int(view._param_begin - view._index),
            int(view._param_end - view._index),
        )
        for buffer in getattr(sharding, "_comm_buffer_list", [])
        for name, view in buffer._sharding_param_grad_view.items()
    }


def _entries(optimizer: Any) -> Iterator[tuple[str, str, str, Tensor]]:
    """Yield entry, quantity, parameter's name and tensor of the state."""
    inner = innermost(optimizer)
    masters = getattr(inner, "_master_weights", {})
    names = {master.name: name for name, master in masters.items()}
    for quantity, tensors in inner._accumulators.items():
        for name, tensor in tensors.items():
            yield tensor.name, quantity, names.get(name, name), tensor
    for name, master in masters.items():
        yield name, _MASTER, name, master


def _pieces(model: nn.Layer, optimizer: Any) -> list[Piece]:
    layout, slices = read_layout(model), _slices(optimizer)
    axis = topology().model
    pieces = []
    for entry, quantity, name, tensor in _entries(optimizer):
        its = layout[name]
        begin, end = slices.get(name, (0, math.prod(its.shape)))
        is_number = math.prod(tensor.shape) == 1 and end - begin != 1
        pieces.append(
            Piece(
                entry=entry,
                key=its.key,
                quantity=quantity,
                shape=[*its.shape],
                begin=-1 if is_number else begin,
                axis=its.split_axis,
                rank=axis.rank if its.is_tp_split else 0,
                num_ranks=axis.size if its.is_tp_split else 1,
            )
        )
    return pieces


def _read_wholes(
    checkpoint: Path, layout: Mapping[str, TensorLayout]
) -> dict[tuple[str, str], rank_weights.Array]:
    """Read every quantity of some tensors of the whole model."""
    saved = _saved_layout(checkpoint)
    wholes: dict[tuple[str, str], rank_weights.Array] = {}
    parts: dict[tuple[str, str], tuple[int | None, Any, Any]] = {}
    for file, entries in saved["optimizer"].items():
        pieces = [Piece(*values) for values in entries]
        pieces = [piece for piece in pieces if piece.key in layout]
        state = load_pickle(checkpoint / file) if pieces else {}
        for piece in pieces:
            local = state[_MASTER] if piece.quantity == _MASTER else state
            values = rank_weights.to_numpy(local[piece.entry])
            place = (piece.key, piece.quantity)
            if piece.begin < 0:
                wholes[place] = values
                continue
            if place not in parts:
                shape = (piece.num_ranks, *piece.shape)
                empty = np.zeros(shape, values.dtype), np.zeros(shape, bool)
                parts[place] = (piece.axis, *empty)
            _, whole, is_filled = parts[place]
            flat = whole[piece.rank].reshape(-1)
            end = min(piece.begin + values.size, flat.size)
            flat[piece.begin : end] = values.reshape(-1)[: end - piece.begin]
            is_filled[piece.rank].reshape(-1)[piece.begin : end] = True
    for place, (axis, whole, is_filled) in parts.items():
        if not is_filled.all():
            what = " of ".join(reversed(place))
            raise ValueError(f"{checkpoint}: {what}: parts are missing")
        if len(whole) > 1:
            wholes[place] = np.concatenate(whole, axis)
        else:
            wholes[place] = whole[0]
    return wholes


def _own_part(
    whole: rank_weights.Array,
    tensor: TensorLayout,
    local: tuple[int, int] | None,
) -> rank_weights.Array | None:
    """Cut this rank's slice out of a whole tensor, or ``[1]``; None: none.

    ``local`` is the slice of the rank's part, which may end in padding.
    """
    if local is not None and local[0] >= local[1]:
        return None
    if whole.shape != _whole_shape(tensor):  # a number, such as Adam's beta**t
        return whole
    if tensor.split_axis is not None:
        axis = topology().model
        parts = np.split(whole, axis.size, tensor.split_axis)
        whole = parts[axis.rank]
    if local is None:
        return np.ascontiguousarray(whole)
    part = np.zeros([local[1] - local[0]], whole.dtype)
    values = whole.reshape(-1)[local[0] : local[1]]
    part[: values.size] = values
    return part
