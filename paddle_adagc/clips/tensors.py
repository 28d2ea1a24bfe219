# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which entry of a clip's vectors is which tensor's; which pairs are theirs."""

from __future__ import annotations

import dataclasses
import logging
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from paddle import Tensor

from paddle_adagc.clips.overrides import Overrides
from paddle_adagc.clips.unit_cuts import UnitCuts
from paddle_adagc.kernels.pairs import (
    LEFT_OUT,
    NO_INDEX,
    KnownPairs,
    PairReader,
)
from paddle_adagc.paddle_internals import makes_states_only
from paddle_adagc.parallel.layout import (
    TensorLayout,
    refuse_unbound_slice,
    unfold,
)
from paddle_adagc.parallel.meshes import any_is_distributed
from paddle_adagc.parallel.ranks import Ranks

logger = logging.getLogger(__name__)


class Tensors:
    """A fixed order of tensors: parameter -> index, index -> key.

    Bound to a model, it holds all of its parameters under their structured
    names. Unbound, it grows with the parameters of each call, under Paddle's
    names.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.layout: tuple[TensorLayout, ...] = ()  # empty: not bound
        self.is_bound = False
        self.cuts: UnitCuts | None = None  # None: no parameter holds units
        self.reader = PairReader()  # knows parameters whose indexes are found
        self.identity = Identity({})
        self.observed: set[int] = set()  # tensors that had a gradient
        self._index_of_key: dict[str, int] = {}
        self._key_of_name: dict[str, str] = {}  # of a model's parameters
        self._index_of_name: dict[str, int] = {}  # of observed parameters
        self._loaded = ""  # "raise", "start": a state whose keys no step saw

    def bind(self, layout: Mapping[str, TensorLayout]) -> None:
        """Take over all parameters of a model, by name, in its order; once."""
        tensors: list[TensorLayout] = []
        holders: dict[int, TensorLayout] = {}
        for name, tensor in layout.items():
            if tensor.units:
                holders[len(tensors)] = tensor
            of_units = [
                dataclasses.replace(tensor, key=unit.key, shape=unit.shape)
                for unit in tensor.units
            ] or [tensor]
            self._key_of_name[name] = of_units[0].key
            tensors += of_units
        keys = [tensor.key for tensor in tensors]
        if twice := _repeated(keys):
            raise ValueError(f"two tensors or units have the key {twice!r}")
        self.layout, self.is_bound = tuple(tensors), True
        self.cuts = UnitCuts(tensors, holders) if holders else None
        self._name(keys)
        shapes = {name: tensor.shape for name, tensor in layout.items()}
        self.identity = Identity(shapes)

    def indexes(self, parameters: Sequence[Tensor]) -> list[int]:
        """First index of each parameter; an unbound table adds new ones."""
        known = self._index_of_name
        indexes = [known[p.name] for p in parameters if p.name in known]
        if len({*indexes}) == len(parameters):
            return indexes
        keys = [self.key(parameter) for parameter in parameters]
        if twice := _repeated(keys):
            raise ValueError(
                f"two parameters of one call are called {twice!r}: one is "
                "twice in the optimizer's list, or both models have to be made "
                "under one paddle.utils.unique_name.guard()"
            )
        if self._loaded:
            self._compare_with_state(keys)
        for key in keys:
            if key not in self._index_of_key:
                self._index_of_key[key] = len(self.keys)
                self.keys.append(key)
        indexes = [self._index_of_key[key] for key in keys]
        for parameter, index in zip(parameters, indexes, strict=True):
            self._index_of_name[parameter.name] = index
        return indexes

    def adopt(
        self, keys: Sequence[str], may_differ: bool, may_hold_more: bool
    ) -> None:
        """Take the tensors of a state, which those that are known have to fit.

        ``may_differ``: it may lack tensors, and hold tensors that are gone.
        ``may_hold_more``: those of other ranks.
        """
        if may_differ and self.keys:
            _log_differences(keys, self.keys, may_hold_more)
        elif self.keys or self.is_bound:
            here, there = ("here", "there") if self.cuts else ("there", "here")
            where = f"units were declared {here} and not {there}"
            frozen = {t.key for t in self.layout if not t.takes_part}
            absent = frozen.difference(keys)  # a state need not have them
            wanted = [key for key in self.keys if key not in absent]
            if not (may_hold_more and {*keys} > {*wanted}):
                _refuse_others(keys, wanted, self.is_bound, where)
        else:
            self._loaded = "start" if may_differ else "raise"
            self._name(keys)

    def _name(self, keys: Sequence[str]) -> None:
        """Give the tensors of these keys their indexes, in this order."""
        self.keys = list(keys)
        self._index_of_key = {key: index for index, key in enumerate(keys)}

    def key(self, parameter: Tensor) -> str:
        """Key of a parameter, or of its first unit, in the table or not."""
        name = parameter.name
        if name in self._key_of_name:
            return self._key_of_name[name]
        refuse_unbound_slice(name)
        if self.is_bound:
            raise ValueError(
                f"parameter {name!r} is not part of the model given to bind(): "
                "bind all parameters of the optimizer, after fleet.init()"
            )
        return name

    def keys_of(self, parameter: Tensor) -> list[str]:
        """Keys of a parameter's units, or its own."""
        key = self.key(parameter)
        first = self._index_of_key.get(key, -1)
        holder = self.cuts and self.cuts.parameters.get(first)
        return [unit.key for unit in holder.units] if holder else [key]

    def _compare_with_state(self, keys: Sequence[str]) -> None:
        """Compare a first step's tensors with those of a state, unbound.

        One that lacks most of them is refused: a tensor less or more is a layer
        that was frozen, or is trained now. So is one that lacks some and holds
        others: a layer that was made before the model moves all names by one.
        If it may differ, only one that lacks all of them.
        """
        here, there = {*keys}, {*self.keys}
        may_differ, known = self._loaded == "start", here & there
        least = 1 if may_differ else len(keys) / 2
        is_other = bool(here - there and there - here) and not may_differ
        if keys and (is_other or len(known) < min(least, len(self.keys))):
            raise ValueError(
                "the loaded state is another model's: it lacks "
                f"{_only_in(keys, self.keys)} and holds "
                f"{_only_in(self.keys, keys)}, which has no gradient here. Use "
                "bind(model) before saving and before loading, so that tensors "
                "carry structured names"
            )
        self._loaded = ""


def look_up(
    pairs: list[Any], tensors: Tensors, ranks: Ranks, overrides: Overrides
) -> KnownPairs | None:
    """Find the pairs to clip, and know their parameters from now on.

    A step does so for parameters that are new, and where the pass in C over the
    pairs (:mod:`paddle_adagc.kernels.pairs`) cannot help.
    Returns None in a step that only makes the optimizer's states.
    """
    known: dict[int, tuple[Tensor, int]] = {}  # by identity
    clipped: list[tuple[Tensor, Tensor]] = []
    if ranks.in_buffers:
        pairs = unfold(pairs, ranks.in_buffers)
    leaves_out = overrides.exempts
    for parameter, gradient in pairs:
        is_clipped = getattr(parameter, "need_clip", True) is not False
        if parameter is not None:
            known[id(parameter)] = parameter, NO_INDEX
        if gradient is None or not is_clipped:
            continue
        if leaves_out and all(map(leaves_out, tensors.keys_of(parameter))):
            known[id(parameter)] = parameter, LEFT_OUT
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
    for (parameter, _), index in zip(clipped, indexes, strict=True):
        known[id(parameter)] = parameter, index
    tensors.reader.remember(known.values())
    return KnownPairs(clipped, indexes, [], None)


class Identity:
    """Notices another model's parameters under the names of those known.

    ``shapes`` are those of a model's parameters, by name, before sharding
    splits them; empty: they are known from their first step on.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = {**shapes}
        place = "the model given to bind()" if shapes else "an earlier step"
        self._where = f"in {place}"
        self._objects: dict[str, weakref.ref[Tensor]] = {}  # by name
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        # A copy meets objects of its own.
        return {**vars(self), "_objects": {}}

    def meet(self, parameter: Tensor) -> bool:
        """Know a parameter; tell whether its name was another object's."""
        reference = weakref.ref(parameter)
        before = self._objects.get(parameter.name, reference)
        self._objects[parameter.name] = reference
        return before() is not parameter

    def check(
        self,
        parameters: Iterable[Tensor],
        key_of: Callable[[Tensor], str],
        may_be_slices: bool,
    ) -> None:
        """Refuse new parameters of another shape; name other objects.

        ``may_be_slices``: sharding may have put a flat slice under the name of
        each of the model's parameters.
        """
        others = []
        for parameter in parameters:
            name, shape = parameter.name, tuple(parameter.shape)
            known = self._shapes.setdefault(name, shape)
            is_slice = may_be_slices and len(shape) == 1  # and padded
            if shape != known and not is_slice:
                raise ValueError(
                    f"{key_of(parameter)} has the shape {[*shape]}, and had "
                    f"{[*known]} {self._where}: this is another model's "
                    "parameter of the same name. Give each model a clip of its "
                    "own"
                )
            if not may_be_slices and self.meet(parameter):
                others.append(repr(key_of(parameter)))
        if others and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{len(others)} parameters ({', '.join(others[:3])}) are other "
                f"objects than those {self._where}, of the same names and "
                "shapes: if they are another model's, give it a clip of its "
                "own, or it shares gamma with the first",
                stacklevel=10,
            )


_AUTOMATIC = re.compile(r"\w+_\d+\.\w+_\d+")
"""A name that Paddle gives a parameter."""


def _refuse_others(
    found: Sequence[str], wanted: Sequence[str], is_bound: bool, where: str
) -> None:
    """Refuse a state's keys that are not the clip's.

    ``where``: the side that would have declared units.
    """
    if {*found} == {*wanted}:
        return
    if is_bound and found and all(map(_AUTOMATIC.fullmatch, found)):
        raise ValueError(
            f"the state's tensors have automatic names of Paddle ({found[0]}, "
            "...): it was saved by a clip that was not bound. If its tensors "
            "are the trained parameters of this model in order, give rename="
            "dict(zip(state['gamma'], [key for key, p in "
            "model.named_parameters() if not p.stop_gradient]))"
        )
    missing, unknown = _only_in(wanted, found), _only_in(found, wanted)
    raise ValueError(
        f"the state's tensors and this clip's differ: {missing or 'none'} "
        f"missing, {unknown or 'none'} unknown. Is it another model's state, "
        "or was one of the two made without bind(model)? If it is one rank's "
        "under sharding or of a pipeline's stage, save full_state_dict(); if "
        "they are one network under two sets of names, give set_state_dict a "
        f"rename; if {where}, bind with the same units; if the model has "
        "changed (a new head, LoRA), give new_tensors='start'"
    )


def _log_differences(
    found: Sequence[str], wanted: Sequence[str], may_hold_more: bool
) -> None:
    """Name each tensor that a state lacks or holds in vain."""
    for key in sorted({*wanted} - {*found}):
        logger.warning("%s is new: its clip starts as at the first step", key)
    if may_hold_more:
        return
    for key in sorted({*found} - {*wanted}):
        logger.warning("%s is gone: what the state holds of it is dropped", key)


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
