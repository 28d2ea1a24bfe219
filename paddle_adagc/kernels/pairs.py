# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One pass in C over the pairs of a clip's call.

It takes the place of six passes in Python, which are most of a clip step's host
time for models with thousands of tensors.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from paddle import Tensor

from paddle_adagc.kernels import host

_FUNCTIONS = (
    "PyList_GetItem",
    "PyTuple_GetItem",
    "PyList_SetItem",
    "PyObject_GetAttr",
    "PyObject_CallFunctionObjArgs",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
)
_OBJECTS = (
    *(None, False, True),
    *("need_clip", Tensor.is_dense, Tensor._bump_inplace_version),
)
"""Their addresses are what ``Python`` in ``host.cpp`` holds."""


class KnownPairs(NamedTuple):
    """The pairs of a call that are to be clipped."""

    pairs: list[tuple[Tensor, Tensor]]
    indexes: list[int]  # first index of each one's parameter
    gradients: list[Tensor | None]  # by place
    descriptors: np.ndarray | None  # host.DESCRIPTOR of each, if they were read


NO_INDEX, LEFT_OUT = -1, -2
"""In place of a parameter's first index: it was not clipped when it was met,
and may be later; it is never clipped. As in ``host.cpp``."""


class PairReader:
    """Remembers each parameter object and its index.

    If all pairs of a call hold remembered parameters, one pass in C reads them.
    A copy of the reader starts empty.
    """

    def __init__(self) -> None:
        self._dead: list[Any] = []
        self._know({})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def _know(self, known: dict[int, tuple[weakref.ref[Tensor], int]]) -> None:
        self._known = known  # by identity: a parameter and its first index
        self._indexes = [index for _, index in known.values()]
        self._ids = np.array([*known], np.uint64)
        self._places: Any = self._ids  # not those of any pass
        self._found: np.ndarray | None = None  # parameters of the last pass

    def _forget_dead(self) -> None:
        """Forget those whose identity another tensor may get."""
        self._dead.clear()
        items = self._known.items()
        self._know({k: v for k, v in items if v[0]() is not None})

    def unknown(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the parameters that no call has clipped so far."""
        known = {i for i, (_, k) in self._known.items() if k != NO_INDEX}
        return [p for p in parameters if id(p) not in known]

    def remember(self, pairs: Iterable[tuple[Tensor, int]]) -> None:
        """Remember the parameters of a call in its order, too.

        ``pairs``: each, and its first index, ``NO_INDEX`` or ``LEFT_OUT``. The
        pass looks for the next parameter behind the last one.
        """
        if self._dead:
            self._forget_dead()
        mine, is_new = {}, False
        for parameter, index in pairs:
            known = self._known.get(id(parameter))
            if known is None or known[1] == NO_INDEX != index:
                known = weakref.ref(parameter, self._dead.append), index
                is_new = True
            mine[id(parameter)] = known
        if is_new:
            others = self._known.items()
            self._know({k: v for k, v in others if k not in mine} | mine)

    def read(
        self, pairs: list[Any], places: Mapping[int, int] | None, length: int
    ) -> KnownPairs | None:
        """Read the pairs of a call, and mark what lies on a GPU as written to.

        ``places``: first index -> place of the parameter's gradient, in a list
        of ``length``; None: the index is the place. Gives None where a pair is
        not of a known parameter and a dense tensor, and where Paddle or a
        missing compiler do not let us.
        """
        if self._dead:
            self._forget_dead()
        if not self._indexes or (read_pairs := _reader()) is None:
            return None
        if places is not self._places:
            where = self._indexes
            if places is not None:
                where = [places.get(i, min(i, NO_INDEX)) for i in where]
            self._places, self._where = places, np.array(where, np.int64)
            self._addresses = self._ids.ctypes.data, self._where.ctypes.data
        found = np.empty(len(pairs), np.int64)
        gradients: list[Tensor | None] = [None] * length
        descriptors = np.empty(length, host.DESCRIPTOR)
        num_read = read_pairs(
            *(pairs, len(pairs), *self._addresses, len(self._indexes)),
            *(host.CUDA, found.ctypes.data, gradients, length),
            descriptors.ctypes.data,
        )
        if num_read < len(pairs):
            return None
        is_clipped = found >= 0
        if self._found is None or not np.array_equal(found, self._found):
            indexes = self._indexes
            self._found = found
            self._of_found = [indexes[i] for i in found[is_clipped].tolist()]
        if not is_clipped.all():
            pairs = [*itertools.compress(pairs, is_clipped)]
        return KnownPairs(pairs, self._of_found, gradients, descriptors)


@functools.cache
def _reader() -> Callable[..., int] | None:
    """Return the pass, with Python's functions and objects given to it."""
    library = host.load_library()
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if library is None or capsule is None:  # Paddle before 3.3
        return None
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api = get_pointer(capsule, b"dlpack_exchange_api")
    # Version 1 of DLPack may have its dltensor_from_py_object_no_sync here.
    exchange = ctypes.c_void_p.from_address(api + 40).value
    if ctypes.c_uint32.from_address(api).value != 1 or not exchange:
        return None
    # With Python's lock: the function looks into Python's objects.
    read_pairs = ctypes.PyDLL(library._name).adagc_read_pairs
    pointer, count, thing = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
    read_pairs.restype = count
    read_pairs.argtypes = [
        *(pointer, thing, count, pointer, pointer, count, count),
        *(pointer, thing, count, pointer),
    ]
    functions = [getattr(ctypes.pythonapi, name) for name in _FUNCTIONS]
    addresses = [ctypes.cast(f, pointer).value for f in functions]
    addresses += [*map(id, _OBJECTS), exchange]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    return functools.partial(read_pairs, table)
