# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the kernels have to know of a list of tensors, and their launches.

Neither Paddle nor a device is needed here: addresses are numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

THREADS = 512
CHUNK = 16384
"""Values that a block takes."""

CHUNKS_OF_BLOCK = 16
"""At most, when scaling."""

_FULL_GRID = 2048
"""Blocks that keep a GPU busy: before there are as many, each has one chunk."""

ADDRESSES = 480
"""In one launch's arguments: 3,840 bytes of the 4,096 that every CUDA has."""

DEFINES = (
    f"-DADAGC_THREADS={THREADS}",
    f"-DADAGC_CHUNK={CHUNK}",
    f"-DADAGC_ADDRESSES={ADDRESSES}",
    f"-DADAGC_CHUNKS_OF_BLOCK={CHUNKS_OF_BLOCK}",
)
_WARP = 32


class _Addresses(ctypes.Structure):
    _fields_ = [("values", ctypes.c_uint64 * ADDRESSES)]


class Rule(ctypes.Structure):
    """Numbers of the adaptive rule, as in ``multi_tensor.cu``."""

    _fields_ = [
        (name, ctypes.c_float)
        for name in ("lambda_rel", "one_minus_beta", "h_of_nonfinite")
    ]


class Run(NamedTuple):
    """The chunks of all segments of one dtype."""

    dtype: str
    first: int  # index of the first chunk
    num_chunks: int


class Tables:
    """How a list of segments is cut into chunks; depends on sizes and dtypes.

    Args:
        dtypes: Name of each segment's dtype.
        sizes: Number of values of each, 0 for none.
        runs: How each lies in memory, and its slot:
            :data:`paddle_adagc.kernels.host.RUNS`. None: each in one piece, in
            a slot of its own.
        num_slots: Length of the vectors, with ``runs``.

    Attributes:
        constants: What is copied to the device once.
        num_bytes: Device memory for it, the addresses and the partial sums.
        chunks, spans, addresses, partial: Where each part of that begins.
    """

    def __init__(
        self,
        dtypes: Sequence[str],
        sizes: np.ndarray,
        runs: np.ndarray | None = None,
        num_slots: int = 0,
    ) -> None:
        self.num_segments = len(sizes)
        self.num_slots = self.num_segments if runs is None else num_slots
        slots, run, stride = np.arange(len(sizes)), sizes, sizes
        if runs is not None:
            slots, stride = runs["slot"], runs["stride"]
            run = np.where(runs["run"] < 0, sizes, runs["run"])
        counts = -(-sizes // CHUNK)
        names = np.array(dtypes, str)
        self.runs: list[Run] = []
        order = [np.zeros(0, np.int64)]
        self.num_chunks = 0
        for dtype in np.unique(names[counts > 0]).tolist():
            members = np.flatnonzero((names == dtype) & (counts > 0))
            order.append(members)
            count = int(counts[members].sum())
            self.runs.append(Run(dtype, self.num_chunks, count))
            self.num_chunks += count
        segment = np.concatenate(order)
        stop = np.zeros(self.num_segments, np.int64)
        stop[segment] = np.cumsum(counts[segment])
        start = stop - counts
        owner = np.repeat(segment, counts[segment])
        index = np.arange(self.num_chunks) - start[owner]
        chunks = np.stack([owner, index, slots[owner], 0 * owner], 1)
        spans = np.zeros([self.num_slots, 2], np.int64)
        # Of a slot's segments, which are neighbours, first start and last stop.
        spans[slots[segment][::-1], 0] = start[segment][::-1]
        spans[slots[segment], 1] = stop[segment]
        segments = np.stack([sizes, run, stride], 1).astype(np.int64)
        self.constants = segments.tobytes()
        self.constants += chunks.astype(np.int32).tobytes()
        self.constants += spans.astype(np.int32).tobytes()
        self.chunks = 24 * self.num_segments
        self.spans = self.chunks + 16 * self.num_chunks
        self.addresses = len(self.constants)
        self.partial = self.addresses + 8 * self.num_segments
        self.num_bytes = self.partial + 4 * self.num_chunks

    @property
    def num_launches(self) -> int:
        """Of norms and scales together."""
        stores = -(-self.num_segments // ADDRESSES)
        return stores + 2 * len(self.runs) + 1


class Launcher:
    """Starts the kernels for one set of tables on one stream.

    Args:
        module: Has ``launch`` and ``copy``, as
            :class:`paddle_adagc.kernels.cuda.driver.Module`.
        tables: The tables.
        memory: Address of ``tables.num_bytes`` bytes on the device.
        stream: Handle of the stream.
    """

    def __init__(
        self, module: Any, tables: Tables, memory: int, stream: int
    ) -> None:
        self._tables, self._module = tables, module
        self._memory, self._stream = memory, stream
        module.copy(memory, tables.constants, stream)

    def store_addresses(self, addresses: np.ndarray) -> None:
        """Tell the device where the tensors are, uint64 ``[num_segments]``."""
        table = self._at(self._tables.addresses)
        for start in range(0, len(addresses), ADDRESSES):
            part = addresses[start : start + ADDRESSES]
            argument = _Addresses()
            ctypes.memmove(argument.values, part.tobytes(), part.nbytes)
            place = ctypes.c_int(start), ctypes.c_int(len(part))
            self._launch("store_addresses", 1, table, *place, argument)

    def squared_norms(self, out: int) -> None:
        """Write float32 ``[num_slots]`` to the address ``out``."""
        tables = self._tables
        for run in tables.runs:
            self._launch(
                f"partial_norm_{run.dtype}",
                run.num_chunks,
                *self._chunks(run),
                self._at(tables.partial + 4 * run.first),
            )
        self._launch(
            "finish_norms",
            -(-tables.num_slots * _WARP // THREADS),
            self._at(tables.spans),
            self._at(tables.partial),
            ctypes.c_int(tables.num_slots),
            ctypes.c_void_p(out),
        )

    def scale(self, h: int, discard: int | None) -> None:
        """Scale by float32 at ``h``; zero where bool at ``discard``."""
        for run in self._tables.runs:
            per_block = min(
                max(run.num_chunks // _FULL_GRID, 1), CHUNKS_OF_BLOCK
            )
            self._launch(
                f"scale_{run.dtype}",
                -(-run.num_chunks // per_block),
                *self._chunks(run),
                ctypes.c_void_p(h),
                ctypes.c_void_p(discard),
                ctypes.c_int(run.num_chunks),
            )

    def _chunks(self, run: Run) -> tuple[ctypes.c_void_p, ...]:
        tables = self._tables
        return (
            self._at(tables.addresses),
            self._at(0),
            self._at(tables.chunks + 16 * run.first),
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

    ``pointers`` are the addresses of gamma, norm, h, new gamma (all float32, as
    ``squared_norm``), lost (bool, may be None), count of non-finite norms
    before and after (int32). ``module`` and ``stream`` as for
    :class:`Launcher`.
    """
    grid = -(-num_tensors // THREADS)
    before = ctypes.c_void_p(squared_norm), ctypes.c_int(num_tensors), rule
    after = map(ctypes.c_void_p, pointers)
    module.launch("adaptive_step", grid, THREADS, stream, *before, *after)
