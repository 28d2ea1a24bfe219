# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which entry of a clip's vectors is which tensor's, and when a step begins."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.kernels.host import RUNS, Segments
from paddle_adagc.kernels.pairs import KnownPairs, PairReader
from paddle_adagc.parallel.layout import TensorLayout, refuse_unbound_slice
from paddle_adagc.parallel.topology import Topology
from paddle_adagc.parallel.units import Unit


class TensorTable:
    """A fixed order of tensors: parameter -> slot, slot -> key.

    Bound to a model, it holds all of its parameters under their structured
    names. Unbound, it grows as parameters come by, under Paddle's names.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.layout: tuple[TensorLayout, ...] = ()
        self.is_bound = False
        self.units: dict[int, tuple[Unit, ...]] = {}
        """First slot of a parameter that holds units -> its units; they have
        the slots from there on."""

        self.cuts: UnitCuts | None = None  # None: no parameter holds units
        self.reader = PairReader()
        """Knows parameters whose slots are found."""

        self._slot_of_key: dict[str, int] = {}
        self._key_of_name: dict[str, str] = {}  # of a model's parameters
        self._slot_of_name: dict[str, int] = {}  # of parameters met so far
        self._is_of_unknown_model = False  # a state's keys, before a step

    @property
    def names(self) -> Set[str]:
        """Paddle's names of a bound table's parameters."""
        return self._key_of_name.keys()

    def bind(self, layout: Mapping[str, TensorLayout]) -> list[int]:
        """Take over all parameters of a model, by name, in its order.

        Returns the slot that each tensor had before, nothing if the table was
        empty; refuses other keys than those of a loaded state or a model.
        """
        tensors: list[TensorLayout] = []
        key_of_name: dict[str, str] = {}
        units: dict[int, tuple[Unit, ...]] = {}
        for name, tensor in layout.items():
            if tensor.units:
                units[len(tensors)] = tensor.units
            of_units = [
                dataclasses.replace(tensor, key=u.key, shape=u.shape)
                for u in tensor.units
            ] or [tensor]
            key_of_name[name] = of_units[0].key
            tensors += of_units
        keys = [tensor.key for tensor in tensors]
        if twice := _repeated(keys):
            raise ValueError(f"two tensors or units have the key {twice!r}")
        if self.is_bound and set(keys) != set(self.keys):
            raise ValueError(
                f"the clip was bound before, to a model with other tensors "
                f"({_difference(self.keys, keys)}), and has a state for them: "
                "make a new clip for this model"
            )
        if self.keys:
            _check_same(self.keys, keys, "the loaded state's tensors", True)
        slot_before = self._slot_of_key
        self._name(keys)
        self.layout, self.units, self.is_bound = tuple(tensors), units, True
        self.cuts = UnitCuts(units, tensors) if units else None
        self._key_of_name, self._is_of_unknown_model = key_of_name, False
        return [slot_before[key] for key in keys] if slot_before else []

    def slots(self, parameters: Sequence[Tensor]) -> list[int]:
        """First slot of each parameter; an unbound table adds new ones."""
        known = self._slot_of_name
        slots = [known[p.name] for p in parameters if p.name in known]
        if len({*slots}) == len(parameters):
            return slots
        keys = [self.key(parameter) for parameter in parameters]
        if twice := _repeated(keys):
            raise ValueError(
                f"two parameters are called {twice!r}, of one optimizer: "
                "make both models under one paddle.utils.unique_name.guard()"
            )
        if self._is_of_unknown_model:
            self._refuse_foreign_state(keys)
        for key in keys:
            if key not in self._slot_of_key:
                refuse_unbound_slice(key)
                self._slot_of_key[key] = len(self.keys)
                self.keys.append(key)
        slots = [self._slot_of_key[key] for key in keys]
        names = [parameter.name for parameter in parameters]
        self._slot_of_name.update(zip(names, slots, strict=True))
        return slots

    def adopt(self, keys: Sequence[str]) -> None:
        """Take the tensors of a state, which those that are known have to fit.

        In a distributed run the state may hold more: other ranks' tensors.
        """
        if self.keys or self.is_bound:
            what = "the state's tensors"
            _check_same(keys, self.keys, what, self.is_bound)
        if not self.is_bound:
            self._name(keys)
            self._is_of_unknown_model = True

    def _name(self, keys: Sequence[str]) -> None:
        """Give the tensors of these keys the slots in this order."""
        self.keys = list(keys)
        self._slot_of_key = {key: slot for slot, key in enumerate(keys)}
        self._slot_of_name, self.reader = {}, PairReader()

    def key(self, parameter: Tensor) -> str:
        """Key of a parameter, or of its first unit, in the table or not."""
        if not self.is_bound:
            return parameter.name
        if parameter.name not in self._key_of_name:
            refuse_unbound_slice(parameter.name)
            raise ValueError(
                f"parameter {parameter.name!r} is not part of the model given "
                "to bind(): bind a layer that holds all parameters of the "
                "optimizer"
            )
        return self._key_of_name[parameter.name]

    def keys_of(self, parameter: Tensor) -> list[str]:
        """Keys of a parameter's units, or its own."""
        key = self.key(parameter)
        slot = self._slot_of_key.get(key, -1)
        return [unit.key for unit in self.units.get(slot, ())] or [key]

    def _refuse_foreign_state(self, keys: Sequence[str]) -> None:
        """Refuse an unbound state of other tensors in the first step."""
        new, unseen = _only_in(keys, self.keys), _only_in(self.keys, keys)
        if new and unseen:
            raise ValueError(
                f"the loaded state is another model's: it lacks {new} and "
                f"holds {unseen}, which has no gradient here. Use bind(model) "
                "before saving and before loading, so that tensors carry "
                "structured names"
            )
        self._is_of_unknown_model = False


_LATE = -1
"""Begin of a slice that no rank had a gradient for in the first step."""


@dataclasses.dataclass
class UnitCuts:
    """Finds the units of a table's parameters in the gradients of a step."""

    units: Mapping[int, Sequence[Unit]]  # of the table
    tensors: Sequence[TensorLayout]  # by slot
    index: dict[int, int] = dataclasses.field(default_factory=dict)
    """First slot of each parameter met -> its place in the gradients."""

    _begins: dict[int, int] | None = None  # of slices, by first slot
    _segments: Segments | None = None

    def __post_init__(self) -> None:
        self._sizes: dict[int, int] = {}  # of gradients met, by first slot
        self._present: dict[int, list[int]] = {}  # by first slot

    def find(
        self,
        found: KnownPairs,
        topology: Topology,
        leaves_out: Callable[[str], bool] | None,
    ) -> tuple[Segments, list[int]]:
        """Return the units in all gradients, and the slots of those present.

        Segments and :attr:`index` change only when a parameter has its first
        gradient. Where sharding splits parameters every rank has to make the
        first call, which asks all for the lengths of their slices.
        """
        slots = found.slots
        if self._segments is None or not self.index.keys() >= {*slots}:
            self._sizes |= {
                slot: math.prod(gradient.shape)
                for slot, (_, gradient) in zip(slots, found.pairs, strict=True)
            }
            if self._begins is None:
                self._begins = self._find_begins(topology)
            late = [slot for slot in slots if self._begins.get(slot) == _LATE]
            if late:
                raise RuntimeError(
                    f"{self.tensors[late[0]].key} has its first gradient after "
                    "the first step: it is too late to ask the other ranks "
                    "where this one's slice of it begins. Give it a gradient, "
                    "if of zeros, in the first step (with fleet's sharding: "
                    "release_gradients=False)"
                )
            self._segments = self._cut(self._begins, leaves_out)
        present = [unit for slot in slots for unit in self._present[slot]]
        return self._segments, present

    def _cut(
        self,
        begins: Mapping[int, int],
        leaves_out: Callable[[str], bool] | None,
    ) -> Segments:
        """Cut the parameters met so far into segments, by slot."""
        rows: list[tuple[int, int, tuple[int, int, int, int]]] = []
        self.index = {slot: i for i, slot in enumerate(sorted(self._sizes))}
        for slot, index in self.index.items():
            begin = begins.get(slot, 0)
            of_units = [
                (p.start, p.size, (slot + i, index, p.run, p.stride))
                for i, unit in enumerate(self.units.get(slot, ()))
                if not (leaves_out and leaves_out(unit.key))
                for p in unit.cut(begin, begin + self._sizes[slot])
            ]
            if slot not in self.units:
                of_units = [(0, -1, (slot, index, -1, 0))]
            self._present[slot] = sorted({runs[0] for _, _, runs in of_units})
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
                slot
                for slot in self.units
                if is_of_experts == (has_groups and tensors[slot].is_expert)
            ]
            if axis.size == 1 or not members:
                continue
            parts: list[dict[int, int]] = []
            mine = {slot: self._sizes.get(slot, 0) for slot in members}
            dist.all_gather_object(parts, mine, group=axis.group)
            for slot in members:
                units, lengths = self.units[slot], [p[slot] for p in parts]
                whole = sum(math.prod(unit.shape) for unit in units)
                if 0 < sum(lengths) < whole:
                    raise RuntimeError(
                        f"the slices of {units[0].key} on the ranks of a "
                        f"sharding group have {lengths} values, which is not "
                        "all of it: every rank needs its gradient in the first "
                        "step"
                    )
                begin = sum(lengths[: axis.rank])
                begins[slot] = begin if any(lengths) else _LATE
        return begins


def _check_same(
    found: Sequence[str], wanted: Sequence[str], what: str, is_bound: bool
) -> None:
    """Refuse keys that are not the clip's, but for those of other ranks."""
    is_part = is_bound and dist.get_world_size() > 1
    if set(found) != set(wanted) and not (is_part and {*found} > {*wanted}):
        raise ValueError(
            f"{what} and this clip's differ: {_difference(found, wanted)}. Is "
            "it another model's state, or was one of the two made without "
            "bind(model)? If they are one network under two sets of names, "
            "give set_state_dict a rename"
        )


def _difference(found: Sequence[str], wanted: Sequence[str]) -> str:
    missing, unknown = _only_in(wanted, found), _only_in(found, wanted)
    return f"{missing or 'none'} missing, {unknown or 'none'} unknown"


def _only_in(keys: Sequence[str], others: Sequence[str]) -> str:
    """Name up to three of the keys that the others lack."""
    excluded = {*others}
    only = [repr(key) for key in keys if key not in excluded]
    rest = f" and {len(only) - 3} more" if len(only) > 3 else ""
    return ", ".join(only[:3]) + rest


def _repeated(keys: Sequence[str]) -> str | None:
    if len({*keys}) == len(keys):
        return None
    return next(key for key in keys if keys.count(key) > 1)


@dataclasses.dataclass(frozen=True)
class StepCount:
    """Optimizer steps, counted by the tensors that come by.

    A tensor that comes by again begins the next step. So does a new tensor, if
    a group was frozen, once all groups were called.
    """

    num_steps: int = 0
    """Steps begun so far."""

    seen: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Tensors met in this step -> position of their call."""

    is_irregular: bool = False
    """A step had one call with gradients though others had several."""

    last: Sequence[int] = ()  # slots of the last call
    has_groups: bool = False  # a step had two calls with gradients
    is_repeating: bool = False  # two calls in a row had gradients
    has_gap: bool = False  # a call without gradients came after one with some
    num_calls: int = 0  # with gradients, in this step
    position: int = 0  # of the next call among the optimizer's groups
    period: int = 0  # calls in every step; 0: not known so far

    def after(
        self, slots: Sequence[int], has_one_state: bool = False
    ) -> StepCount:
        """Return the count after one more call, with gradients of ``slots``.

        A call without gradients counts as one: the clip is called so only where
        ranks wait for each other, and on a rank that has none.
        """
        again = next(filter(self.seen.__contains__, slots), None)
        is_over = self.num_calls < self.period <= self.position
        joins = bool(slots and self.seen) and again is None and not is_over
        if joins and has_one_state:
            raise RuntimeError(
                "the clip was called for several parameter groups, and keeps "
                f"one state for all tensors: {_REMEDY}. (Other tensors than in "
                "the step before look like a group: give each set its own clip)"
            )
        is_gap = bool(self.seen and not slots)
        if is_gap and (self.has_groups or self.has_gap > self.is_repeating):
            raise RuntimeError(
                "a parameter group has no gradients on this rank, so it cannot "
                f"tell when a step begins: {_REMEDY}"
            )
        is_short = self.has_groups and self.num_calls == 1 and not is_over
        period, place = self.period, self.position
        if again is not None:
            distance = place - self.seen[again]
            if not period or distance % period:  # else: steps without any
                period = distance
            place = self.seen[again]
        elif is_over:
            place %= period
        seen = self.seen
        if again is None or slots is not self.last or self.num_calls > 1:
            seen = dict.fromkeys(slots, place)
        return StepCount(
            num_steps=self.num_steps + (not joins),
            seen={**self.seen, **seen} if joins else seen,
            is_irregular=self.is_irregular or (is_short and not joins),
            last=slots,
            has_groups=self.has_groups or joins,
            is_repeating=self.is_repeating or bool(self.seen and slots),
            has_gap=self.has_gap or is_gap,
            num_calls=self.num_calls * joins + bool(slots),
            position=place + 1,
            period=period,
        )

    def after_empty_group(self) -> StepCount:
        """Return the count after a call that is no step of its own."""
        return dataclasses.replace(self, position=self.position + 1)

    def resumed_at(self, num_steps: int) -> StepCount:
        """Return the count as if ``num_steps`` steps had been made."""
        return dataclasses.replace(
            self, num_steps=num_steps, seen={}, num_calls=0, position=0
        )


_REMEDY = "use one group, and apply_decay_param_fun where weight decay differs"
