# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find an optimizer's parameters in a clip's order, by Python.

A step does so for parameters that are new, and where the pass in C over the
pairs (:mod:`paddle_adagc.kernels.pairs`) cannot help.
"""

from __future__ import annotations

from typing import Any

from paddle import Tensor

from paddle_adagc.clips.overrides import Overrides
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.kernels.pairs import LEFT_OUT, NO_INDEX, KnownPairs
from paddle_adagc.paddle_internals import makes_states_only
from paddle_adagc.parallel.layout import unfold
from paddle_adagc.parallel.meshes import any_is_distributed
from paddle_adagc.parallel.ranks import Ranks


def look_up(
    pairs: list[Any], tensors: Tensors, ranks: Ranks, overrides: Overrides
) -> KnownPairs | None:
    """Find the pairs to clip, and know their parameters from now on.

    Returns None in a step that only makes the optimizer's states.
    """
    known: list[tuple[Tensor, int]] = []  # pairs that are not clipped
    clipped: list[tuple[Tensor, Tensor]] = []
    if ranks.in_buffers:
        pairs = unfold(pairs, ranks.in_buffers)
    leaves_out = overrides.exempts
    for parameter, gradient in pairs:
        is_clipped = getattr(parameter, "need_clip", True) is not False
        if gradient is None or not is_clipped:
            known += [(parameter, NO_INDEX)] if parameter is not None else []
        elif leaves_out and all(map(leaves_out, tensors.keys_of(parameter))):
            known.append((parameter, LEFT_OUT))
        else:
            clipped.append((parameter, gradient))
    is_on_mesh = any_is_distributed(clipped)
    if is_on_mesh and makes_states_only():
        return None
    parameters = [parameter for parameter, _ in clipped]
    if new := tensors.reader.unknown(parameters):
        may_be_slices = ranks.in_buffers or ranks.topology().splits_parameters
        tensors.identity.check(new, tensors.key, bool(may_be_slices))
    indexes = tensors.indexes(parameters)
    if not (
        tensors.is_bound
        or tensors.observed.issuperset(indexes)
        or any(parameter.is_dist() for parameter in parameters)
    ):
        ranks.check_unbound(parameters)
    if is_on_mesh:
        ranks.reducer = None  # it may know tensors that lay on no mesh
        clipped = ranks.meshes.local_parts(indexes, clipped)
        indexes = tensors.indexes([parameter for parameter, _ in clipped])
    known += [(p, i) for (p, _), i in zip(clipped, indexes, strict=True)]
    tensors.reader.remember(known)
    return KnownPairs(clipped, indexes, [], None)
