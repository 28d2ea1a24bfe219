# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the kernels have to know of a list of tensors, and their launches.

Neither Paddle nor a device is needed here: addresses are numbers.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

THREADS = 512
CHUNK = 16384
"""Values that a block takes."""

ADDRESSES = 480
"""In one launch's arguments: 3,840 bytes of the 4,096 that every CUDA has."""

DEFINES = (
    f"-DADAGC_THREADS={THREADS}",
    f"-DADAGC_CHUNK={CHUNK}",
    f"-DADAGC_ADDRESSES={ADDRESSES}",
)
_WARP = 32


class _Addresses(ctypes.Structure):
    _fields_ = [("values", ctypes.c_uint64 * ADDRESSES)]


class Rule(ctypes.Structure):
    """Numbers of the adaptive rule, as in ``multi_tensor.cu``."""

    _fields_ = [
        (name, ctypes.c_float)
        for name in (
            "lambda_rel",
            "beta",
            "one_minus_beta",
            "lambda_dev",
            "h_of_nonfinite",
        )
    ]


@dataclasses.dataclass(frozen=True)
class Run:
    """The chunks of all tensors of one dtype."""

    dtype: str
    first: int
    """Index of the first chunk."""

    count: int


class Tables:
    """How a list of tensors is cut into chunks; depends on sizes and dtypes.

    A tensor's size is its number of values, 0 for no tensor. ``constants`` are
    copied to the device once; ``num_bytes`` is the device memory for them, the
    addresses and the partial sums.
    """

    def __init__(self, dtypes: Sequence[str], sizes: np.ndarray) -> None:
        self.num_tensors = len(sizes)
        counts = -(-sizes // CHUNK)
        names = np.array(dtypes, str)
        self.runs: list[Run] = []
        order = [np.zeros(0, np.int64)]
        first = 0
        for dtype in sorted(set(names[counts > 0].tolist())):
            members = np.flatnonzero((names == dtype) & (counts > 0))
            order.append(members)
            count = int(counts[members].sum())
            self.runs.append(Run(dtype, first, count))
            first += count
        self.num_chunks = first
        tensor = np.concatenate(order)
        stop = np.zeros(self.num_tensors, np.int64)
        stop[tensor] = np.cumsum(counts[tensor])
        start = stop - counts
        owner = np.repeat(tensor, counts[tensor])
        chunks = np.stack([owner, np.arange(first) - start[owner]], 1)
        spans = np.stack([start, stop], 1)
        self.constants = (
            sizes.astype(np.int64).tobytes()
            + spans.astype(np.int32).tobytes()
            + chunks.astype(np.int32).tobytes()
        )
        self.spans = 8 * self.num_tensors
        self.chunks = 16 * self.num_tensors
        self.addresses = len(self.constants)
        self.partial = self.addresses + 8 * self.num_tensors
        self.num_bytes = self.partial + 4 * self.num_chunks

    @property
    def num_launches(self) -> int:
        """Of norms and scales together."""
        stores = -(-self.num_tensors // ADDRESSES)
        return stores + 2 * len(self.runs) + 1


class Launcher:
    """Starts the kernels for one set of tables on one stream.

    ``module`` has ``launch`` and ``copy``, as ``Module`` of ``driver.py``;
    ``memory`` is the address of ``tables.num_bytes`` bytes on the device.
    """

    def __init__(
        self, module: Any, tables: Tables, memory: int, stream: int
    ) -> None:
        self.tables = tables
        self._module = module
        self._memory = memory
        self._stream = stream
        module.copy(memory, tables.constants, stream)

    def store_addresses(self, addresses: np.ndarray) -> None:
        """Tell the device where the tensors are; uint64 ``[num_tensors]``."""
        for start in range(0, self.tables.num_tensors, ADDRESSES):
            part = addresses[start : start + ADDRESSES]
            argument = _Addresses()
            ctypes.memmove(argument.values, part.tobytes(), part.nbytes)
            self._launch(
                "store_addresses",
                1,
                self._at(self.tables.addresses),
                ctypes.c_int(start),
                ctypes.c_int(len(part)),
                argument,
            )

    def squared_norms(self, out: int) -> None:
        """Write float32 ``[num_tensors]`` to the address ``out``."""
        tables = self.tables
        for run in tables.runs:
            self._launch(
                f"partial_norm_{run.dtype}",
                run.count,
                *self._chunks(run),
                self._at(tables.partial + 4 * run.first),
            )
        self._launch(
            "finish_norms",
            -(-tables.num_tensors * _WARP // THREADS),
            self._at(tables.spans),
            self._at(tables.partial),
            ctypes.c_int(tables.num_tensors),
            ctypes.c_void_p(out),
        )

    def scale(self, h: int, discard: int | None) -> None:
        """Scale by float32 at ``h``; zero where bool at ``discard``."""
        for run in self.tables.runs:
            self._launch(
                f"scale_{run.dtype}",
                run.count,
                *self._chunks(run),
                ctypes.c_void_p(h),
                ctypes.c_void_p(discard),
            )

    def _chunks(self, run: Run) -> tuple[ctypes.c_void_p, ...]:
        tables = self.tables
        return (
            self._at(tables.addresses),
            self._at(0),
            self._at(tables.chunks + 8 * run.first),
        )

    def _at(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._memory + offset)

    def _launch(self, name: str, grid: int, *arguments: Any) -> None:
        self._module.launch(name, grid, THREADS, self._stream, *arguments)


def launch_adaptive_step(
    module: Any,
    stream: int,
    num_tensors: int,
    rule: Rule,
    squared_norm: int,
    pointers: Sequence[int | None],
) -> None:
    """Start the fused rule on vectors ``[num_tensors]``.

    ``squared_norm`` is the address of the squared norms; ``pointers`` are those
    of gamma, deviation, norm, h, new gamma, new deviation (all float32), lost
    (bool), and the counts of non-finite norms before and after (int32). The
    deviations may be None, and lost.
    """
    module.launch(
        "adaptive_step",
        -(-num_tensors // THREADS),
        THREADS,
        stream,
        ctypes.c_void_p(squared_norm),
        ctypes.c_int(num_tensors),
        rule,
        *map(ctypes.c_void_p, pointers),
    )
