# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether a parameter is the one that its name stood for before."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paddle import Tensor


class Identity:
    """Notices another model's parameters under the names of those known.

    Args:
        where: Words for where those that are known were met.
        shapes: Shape of each that is known, by name, before sharding splits it.
    """

    def __init__(
        self, where: str, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        self._where = where
        self._shapes = {**shapes} if shapes else {}
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
