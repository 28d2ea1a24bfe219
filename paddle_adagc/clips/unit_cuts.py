# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which piece of which gradient is which unit."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from paddle import Tensor

from paddle_adagc.kernels.host import RUNS, Segments
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology, gather

_LATE = -1
"""Begin of a slice that no rank had a gradient for in the first step."""


class UnitCuts:
    """Finds the units of a model's parameters in the gradients of a step.

    A parameter stands here under its first index: that of its first unit, or
    its own if it is one tensor. "Observed" are those that had a gradient.

    Args:
        tensors: Units and whole tensors, by index.
        parameters: Those with units, by first index.
    """

    def __init__(
        self,
        tensors: Sequence[TensorLayout],
        parameters: Mapping[int, TensorLayout],
    ) -> None:
        self.tensors, self.parameters = tensors, parameters
        self.places: dict[int, int] = {}
        """Observed parameter -> place of its gradient in a step's list."""

        self._shapes: dict[int, list[int]] = {}  # of gradients with units
        self._begins: dict[int, int] | None = None  # of slices with units
        self._present: dict[int, list[int]] = {}  # observed -> units here
        self._segments: Segments | None = None  # of all observed gradients

    def find_segments(
        self,
        gradients: Mapping[int, Tensor],
        topology: Topology,
        leaves_out: Callable[[str], bool] | None,
    ) -> Segments:
        """Return the units in a step's gradients, which stand by first index.

        They and :attr:`places` change only when a parameter has its first
        gradient. Where sharding splits parameters every rank has to make the
        first call, which asks all for the lengths of their slices.

        Raises:
            ValueError: A gradient with units has another shape than its
                parameter, or is sparse: its units would not lie in it.
        """
        refused = ""
        for first in self.parameters:
            gradient = gradients.get(first)
            if gradient is not None and (
                gradient.shape != self._shapes.get(first)
                or gradient.is_selected_rows()
            ):
                refused = self._check(first, gradient, topology) or refused
        if self._begins is None:
            self._begins = self._find_begins(topology, refused)
        if refused:
            raise ValueError(refused)
        if (
            self._segments is not None
            and self.places.keys() >= gradients.keys()
        ):
            return self._segments
        for first in gradients:
            if self._begins.get(first) == _LATE:
                raise RuntimeError(
                    f"{self.tensors[first].key} has its first gradient after "
                    "the first step: it is too late to ask the other ranks "
                    "where this one's slice of it begins. Give it a gradient, "
                    "if of zeros, in the first step (with fleet's sharding: "
                    "release_gradients=False)"
                )
        observed = sorted(self.places.keys() | gradients.keys())
        self.places = {first: place for place, first in enumerate(observed)}
        self._segments = self._cut(self._begins, leaves_out)
        return self._segments

    def present(self, indexes: Sequence[int]) -> list[int]:
        """Return the indexes of all units of these parameters."""
        return [unit for first in indexes for unit in self._present[first]]

    def _check(self, first: int, gradient: Tensor, topology: Topology) -> str:
        """Know a first gradient; say why units lie elsewhere in one, or "".

        Compiled code would read and write past its end. The first gradient has
        its parameter's shape, or is a flat slice of it; the others are alike.
        """
        parameter, shape = self.parameters[first], [*gradient.shape]
        if gradient.is_selected_rows():
            return (
                f"the gradient of {parameter.key} is sparse, and the parameter "
                "holds units: use sparse=False"
            )
        expected = self._shapes.get(first)
        if expected is None:
            is_slice = topology.splits_parameters and len(shape) == 1
            expected = shape if is_slice else [*parameter.shape]
        if shape != expected:
            return (
                f"the gradient of {parameter.key} has the shape {shape}, and "
                f"its {len(parameter.units)} units lie in {expected}: is it "
                "another model's? Give each model a clip of its own"
            )
        self._shapes[first] = shape
        return ""

    def _cut(
        self,
        begins: Mapping[int, int],
        leaves_out: Callable[[str], bool] | None,
    ) -> Segments:
        """Cut the observed gradients into segments, by index."""
        starts: list[int] = []
        sizes: list[int] = []
        runs: list[tuple[int, int, int, int]] = []
        for first, place in self.places.items():
            if first not in self.parameters:  # one tensor, in one run
                self._present[first] = [first]
                starts.append(0)
                sizes.append(-1)
                runs.append((first, place, -1, 0))
                continue
            here: list[int] = []
            begin = begins.get(first, 0)
            end = begin + math.prod(self._shapes[first])
            for index, unit in enumerate(self.parameters[first].units, first):
                if leaves_out and leaves_out(unit.key):
                    continue
                pieces = unit.cut(begin, end)
                here += [index] if pieces else []
                starts += [piece.start for piece in pieces]
                sizes += [piece.size for piece in pieces]
                runs += [(index, place, p.run, p.stride) for p in pieces]
            self._present[first] = here
        return Segments(
            np.array(starts, np.int64),
            np.array(sizes, np.int64),
            np.array(runs, RUNS),
            len(self.tensors),
        )

    def tell(self, refused: str, topology: Topology) -> None:
        """Tell ranks that wait for this one's lengths why it makes no step."""
        if self._begins is None:
            with contextlib.suppress(ValueError):
                self._find_begins(topology, refused)

    def _find_begins(self, topology: Topology, refused: str) -> dict[int, int]:
        """Return the first value of this rank's slice of each parameter.

        Of those with units, where sharding splits them: else they are whole.
        The ranks tell each other the lengths of their slices, and why one makes
        no step. Every rank needs a gradient for its slice, or none may have
        one.
        """
        begins: dict[int, int] = {}
        if not topology.splits_parameters:
            return begins
        members: dict[bool, list[int]] = {False: [], True: []}
        for first, holder in self.parameters.items():
            has_group = holder.is_expert and topology.has_expert_groups
            if not holder.is_whole:
                members[has_group].append(first)
        found: list[tuple[Axis, list[dict[int, int]]]] = []
        for has_group, its in members.items():
            axis = topology.moe_sharding if has_group else topology.sharding
            if axis.size > 1 and its:
                mine = {i: math.prod(self._shapes.get(i, [0])) for i in its}
                of_ranks = gather((mine, refused), axis.group)
                refused = next((why for _, why in of_ranks if why), "")
                found.append((axis, [lengths for lengths, _ in of_ranks]))
        if refused and found:
            raise ValueError(refused)
        for axis, of_axis in found:
            for first in of_axis[0]:
                lengths = [its[first] for its in of_axis]
                units = self.parameters[first].units
                size = sum(math.prod(unit.shape) for unit in units)
                if 0 < sum(lengths) < size:
                    raise RuntimeError(
                        f"the slices of {units[0].key} on the ranks of a "
                        f"sharding group have {lengths} values, which is not "
                        "all of it: every rank needs its gradient in the first "
                        "step"
                    )
                is_late = not any(lengths)
                begins[first] = _LATE if is_late else sum(lengths[: axis.rank])
        return begins
