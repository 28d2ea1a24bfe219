# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Buffers that join several tensors, as fleet's ``fuse_optimizer`` makes them.

The optimizer's parameter is then one buffer of the weights of several layers,
and its gradient another, with the same places in it. The model's parameters are
views into the buffer of weights: from their addresses follow the slices of the
buffer of gradients, in its own memory.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

from paddle import Tensor, _C_ops

Member = tuple[Tensor, int]
"""A parameter and its first element in the buffer."""


class FusedBuffers:
    """Finds a model's parameters in the buffers that an optimizer works on.

    Args:
        parameters: The model's.
    """

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._parameters = list(parameters)
        self._members: dict[int, list[Member]] = {}  # by a buffer's address

    def unfold(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        known: Container[str],
    ) -> list[tuple[Tensor, Tensor]]:
        """Replace each buffer by the tensors in it.

        Args:
            pairs: Parameters or buffers, with their gradients.
            known: Names of the parameters that are no buffers.

        Returns:
            Parameters and gradients, views into the buffers of gradients.
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

    def _find(self, buffer: Tensor) -> list[Member]:
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
