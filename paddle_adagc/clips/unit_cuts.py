# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which piece of which gradient is which unit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.kernels.host import RUNS, Segments
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Topology

_LATE = -1
"""Begin of a slice that no rank had a gradient for in the first step."""


@dataclasses.dataclass
class UnitCuts:
    """Finds the units of a model's parameters in the gradients of a step."""

    tensors: Sequence[TensorLayout]  # by index
    parameters: Mapping[int, TensorLayout]  # those with units, by first index
    places: dict[int, int] = dataclasses.field(default_factory=dict)
    """First index of each observed parameter -> its place in the gradients."""

    _begins: dict[int, int] | None = None  # of slices, by first index
    _segments: Segments | None = None

    def __post_init__(self) -> None:
        self._sizes: dict[int, int] = {}  # of observed gradients
        self._shapes: dict[int, list[int]] = {}  # of those with units
        self._present: dict[int, list[int]] = {}  # all by first index

    def find_segments(
        self,
        gradients: Mapping[int, Tensor],
        topology: Topology,
        leaves_out: Callable[[str], bool] | None,
    ) -> Segments:
        """Return the units in all gradients, which are given by first index.

        They and :attr:`places` change only when a parameter has its first
        gradient. Where sharding splits parameters every rank has to make the
        first call, which asks all for the lengths of their slices.

        Raises:
            ValueError: A gradient with units has another shape than its
                parameter, or is sparse: its units would not lie in it.
        """
        for first, shape in self._shapes.items():
            gradient = gradients.get(first)
            if gradient is not None:
                self._check(first, gradient, gradient.shape == shape)
        if self._segments is None or not self.places.keys() >= gradients.keys():
            self._measure(gradients, topology)
            if self._begins is None:
                self._begins = self._find_begins(topology)
            late = [i for i in gradients if self._begins.get(i) == _LATE]
            if late:
                raise RuntimeError(
                    f"{self.tensors[late[0]].key} has its first gradient after "
                    "the first step: it is too late to ask the other ranks "
                    "where this one's slice of it begins. Give it a gradient, "
                    "if of zeros, in the first step (with fleet's sharding: "
                    "release_gradients=False)"
                )
            self._segments = self._cut(self._begins, leaves_out)
        return self._segments

    def _measure(
        self, gradients: Mapping[int, Tensor], topology: Topology
    ) -> None:
        """Take the sizes of gradients, and check those that are new."""
        shapes = dict(self._shapes)
        for first in self.parameters.keys() & gradients.keys() - shapes.keys():
            shape = shapes[first] = [*gradients[first].shape]
            whole = [*self.parameters[first].shape]
            is_slice = topology.splits_parameters and len(shape) == 1
            fits = shape == whole or is_slice
            self._check(first, gradients[first], fits)
        self._sizes |= {i: math.prod(g.shape) for i, g in gradients.items()}
        self._shapes = shapes

    def _check(self, first: int, gradient: Tensor, fits: bool) -> None:
        """Refuse a gradient in which the units do not lie where they should.

        Compiled code would read and write past its end.
        """
        is_sparse = gradient.is_selected_rows()
        if fits and not is_sparse:
            return
        parameter, shape = self.parameters[first], [*gradient.shape]
        if is_sparse:
            raise ValueError(
                f"the gradient of {parameter.key} is sparse, and the parameter "
                "holds units: use sparse=False"
            )
        expected = self._shapes.get(first, [*parameter.shape])
        raise ValueError(
            f"the gradient of {parameter.key} has the shape {shape}, and its "
            f"{len(parameter.units)} units lie in {expected}: is it another "
            "model's? Give each model a clip of its own"
        )

    def present(self, indexes: Sequence[int]) -> list[int]:
        """Return the indexes of all units of these parameters."""
        return [unit for first in indexes for unit in self._present[first]]

    def _cut(
        self,
        begins: Mapping[int, int],
        leaves_out: Callable[[str], bool] | None,
    ) -> Segments:
        """Cut the observed parameters into segments, by index."""
        rows: list[tuple[int, int, tuple[int, int, int, int]]] = []
        self.places = {first: i for i, first in enumerate(sorted(self._sizes))}
        for first, place in self.places.items():
            begin = begins.get(first, 0)
            holder = self.parameters.get(first)
            of_units = [
                (p.start, p.size, (first + i, place, p.run, p.stride))
                for i, unit in enumerate(holder.units if holder else ())
                if not (leaves_out and leaves_out(unit.key))
                for p in unit.cut(begin, begin + self._sizes[first])
            ]
            if holder is None:
                of_units = [(0, -1, (first, place, -1, 0))]
            self._present[first] = sorted({runs[0] for _, _, runs in of_units})
            rows += of_units
        kinds = [("start", np.int64), ("size", np.int64), ("runs", RUNS)]
        table = np.array(rows, kinds)
        start, size, runs = (table[name].copy() for name, _ in kinds)
        return Segments(start, size, runs, len(self.tensors))

    def _find_begins(self, topology: Topology) -> dict[int, int]:
        """First value of this rank's slice of each parameter with units.

        Every rank needs a gradient for its slice, or none may have one.
        """
        begins: dict[int, int] = {}
        if not topology.splits_parameters:
            return begins
        tensors, has_groups = self.tensors, topology.has_expert_groups
        axes = topology.sharding, topology.moe_sharding  # dense, experts
        for is_of_experts, axis in enumerate(axes):
            members = [
                first
                for first in self.parameters
                if is_of_experts == (has_groups and tensors[first].is_expert)
            ]
            if axis.size == 1 or not members:
                continue
            parts: list[dict[int, int]] = []
            mine = {first: self._sizes.get(first, 0) for first in members}
            dist.all_gather_object(parts, mine, group=axis.group)
            for first in members:
                units = self.parameters[first].units
                lengths = [part[first] for part in parts]
                whole = sum(math.prod(unit.shape) for unit in units)
                if 0 < sum(lengths) < whole:
                    raise RuntimeError(
                        f"the slices of {units[0].key} on the ranks of a "
                        f"sharding group have {lengths} values, which is not "
                        "all of it: every rank needs its gradient in the first "
                        "step"
                    )
                begin = sum(lengths[: axis.rank])
                begins[first] = begin if any(lengths) else _LATE
        return begins
