# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From an optimizer's pairs to the gradients of a step, in a clip's order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paddle import Tensor
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)

from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.kernels.pairs import LEFT_OUT, NO_INDEX, KnownPairs
from paddle_adagc.paddle_internals import makes_states_only
from paddle_adagc.parallel.layout import unfold
from paddle_adagc.parallel.meshes import any_is_distributed
from paddle_adagc.parallel.ranks import Ranks

Pairs = list[tuple[Tensor, Tensor | None]]
"""Parameters, and gradients or None."""

LeavesOut = Callable[[str], bool]
"""Whether the tensor of a key is not clipped."""


class Found(NamedTuple):
    """The gradients that one call of a clip has to clip."""

    pairs: list[tuple[Tensor, Tensor]]  # this rank's parts
    indexes: list[int]  # first index of each one's parameter
    present: list[int]  # indexes of all tensors or units in them
    gradients: GradientList


def find(
    pairs: list[Any],
    tensors: Tensors,
    ranks: Ranks,
    leaves_out: LeavesOut | None,
    group: Any,
) -> Found | None:
    """Find the gradients to clip among an optimizer's pairs.

    ``group`` is that of auto-parallel's buffers, in which ranks have slices.
    Returns None in a step that only makes the optimizer's states.
    """
    cuts = tensors.cuts
    places = cuts.places if cuts else None
    length = len(tensors.keys if places is None else places)
    read = None
    if not (
        ranks.in_buffers or group is not None or get_unique_process_mesh_map()
    ):
        read = tensors.reader.read(pairs, places, length)
    if read is None:
        read = _look_up(pairs, tensors, ranks, leaves_out, group)
        if read is None:
            return None
    segments, present = None, read.indexes
    listed: dict[int, Tensor] = {}
    if cuts or read.descriptors is None:
        gradients = (gradient for _, gradient in read.pairs)
        listed = dict(zip(read.indexes, gradients, strict=True))
    if cuts:
        ranks.refuse_shuffled()
        segments = cuts.find(listed, ranks.topology(), leaves_out)
        present = cuts.present(read.indexes)
    in_order = read.gradients
    if read.descriptors is None:
        order = cuts.places if cuts else range(len(tensors.keys))
        in_order = [listed.get(index) for index in order]
    found = GradientList(in_order, segments, read.descriptors)
    return Found(read.pairs, read.indexes, present, found)


def _look_up(
    pairs: Pairs,
    tensors: Tensors,
    ranks: Ranks,
    leaves_out: LeavesOut | None,
    group: Any,
) -> KnownPairs | None:
    """Find the pairs to clip, by Python, and know their parameters from now."""
    known: list[tuple[Tensor, int]] = []  # pairs that are not clipped
    clipped: list[tuple[Tensor, Tensor]] = []
    for parameter, gradient in pairs:
        is_clipped = getattr(parameter, "need_clip", True) is not False
        if gradient is None or not is_clipped:
            known += [(parameter, NO_INDEX)] if parameter is not None else []
        else:
            clipped.append((parameter, gradient))
    if ranks.in_buffers:
        clipped = unfold(clipped, ranks.in_buffers)
    if leaves_out is not None:
        taken = []
        for parameter, gradient in clipped:
            if all(map(leaves_out, tensors.keys_of(parameter))):
                known.append((parameter, LEFT_OUT))
            else:
                taken.append((parameter, gradient))
        clipped = taken
    is_on_mesh = group is not None or any_is_distributed(clipped)
    if is_on_mesh and makes_states_only():
        return None
    may_be_slices = group is not None or ranks.splits_parameters
    indexes = _indexes(clipped, tensors, ranks, may_be_slices)
    if is_on_mesh:
        clipped = ranks.local_pairs(clipped, indexes, group)
        indexes = tensors.indexes([parameter for parameter, _ in clipped])
    known += [(p, i) for (p, _), i in zip(clipped, indexes, strict=True)]
    tensors.reader.remember(known)
    return KnownPairs(clipped, indexes, [], None)


def _indexes(
    pairs: list[tuple[Tensor, Tensor]],
    tensors: Tensors,
    ranks: Ranks,
    may_be_slices: bool,
) -> list[int]:
    """Each parameter's first index, after a look at parameters that are new."""
    parameters = [parameter for parameter, _ in pairs]
    if new := tensors.reader.unknown(parameters):
        tensors.check_identity(new, may_be_slices)
    indexes = tensors.indexes(parameters)
    if not (
        tensors.is_bound
        or tensors.observed.issuperset(indexes)
        or any(parameter.is_dist() for parameter in parameters)
    ):
        ranks.check_unbound(parameters)
    return indexes
