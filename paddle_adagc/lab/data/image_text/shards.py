# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tar shards of samples, read in an order from which a run can go on.

The shards are dealt out to streams, one for every process that reads, anew in
every epoch. A stream reads its shards from start to end, one after the other,
and shuffles neighbouring samples: what stands at any position of a stream
depends on the seed alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from webdataset.tariterators import base_plus_ext, tarfile_samples
from webdataset.utils import glob_with_braces

from paddle_adagc.lab.data.order import distinct_windows, random_bits

Sample = dict[str, Any]
"""Content of the files of a sample, as bytes, by extension."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A tar file, and how many samples it holds."""

    path: str
    num_samples: int


def find_shards(pattern: str) -> list[Shard]:
    """Shards that a pattern with braces and wildcards names, sorted.

    A shard's samples are counted; img2dataset's ``NAME_stats.json`` beside
    ``NAME.tar`` saves reading it.

    Raises:
        FileNotFoundError: The pattern names no file.
        ValueError: A shard has no samples, or is no tar file.
    """
    return [Shard(path, _count_samples(path)) for path in shard_paths(pattern)]


def shard_paths(pattern: str) -> list[str]:
    """Files that a pattern with braces and wildcards names, sorted.

    Raises:
        FileNotFoundError: There are none.
    """
    paths = sorted(glob_with_braces(pattern))
    if not paths:
        raise FileNotFoundError(f"there are no shards {pattern}")
    return paths


def _count_samples(path: str) -> int:
    stats = Path(path).with_name(f"{Path(path).stem}_stats.json")
    if stats.is_file():
        count = json.loads(stats.read_text())["successes"]
    else:
        try:
            with tarfile.open(path) as archive:
                names = [m.name for m in archive if m.isreg()]
        except tarfile.TarError as error:
            raise ValueError(f"{path} is no tar file: {error}") from error
        keys = {base_plus_ext(name)[0] for name in names}
        count = len(keys - {None})
    if not count:
        raise ValueError(f"{path} holds no samples: leave it out")
    return count


def read_samples(path: str | os.PathLike[str]) -> Iterator[Sample]:
    """Yield the samples of one shard, in their order.

    webdataset runs ``pipe:...`` as a shell command and fetches URLs; an
    absolute path is neither.
    """
    return iter(tarfile_samples([{"url": str(Path(path).absolute())}]))


class ShardStream:
    """One of the streams that the shards are dealt out to.

    Epoch after epoch the shards are permuted, and stream ``k`` of ``n`` takes
    every ``n``-th, from the ``k``-th on.

    Args:
        shards: All shards.
        number: Index of this stream.
        num_streams: Number of streams, at most that of the shards.
        seed: Seed of the orders.
        shuffle_size: Neighbouring samples of a shard that are shuffled, and
            held in memory.

    Raises:
        ValueError: There are more streams than shards.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        number: int,
        num_streams: int,
        *,
        seed: int,
        shuffle_size: int,
    ) -> None:
        if num_streams > len(shards):
            raise ValueError(
                f"{len(shards)} shards for {num_streams} streams (ranks with "
                "data of their own times data.num_workers): give more shards "
                "or lower data.num_workers"
            )
        self._shards = shards
        self._number, self._num_streams = number, num_streams
        self._seed, self._shuffle_size = seed, shuffle_size
        self._epoch, self._epoch_start = 0, 0
        self._order = self._epoch_order(0)
        self._chunk: list[Sample] = []
        self._chunk_key: tuple[int, int, int] | None = None
        self._reader: Iterator[Sample] = iter(())
        self._reader_at: tuple[int, int, int] | None = None

    def chunk(self, position: int) -> tuple[list[Sample], int]:
        """Return the samples that are shuffled with the one at a position.

        Cheap if positions rise; going back reads a shard again.

        Returns:
            The shuffled samples, and where among them that one is.

        Raises:
            ValueError: A shard has fewer samples than was counted.
        """
        turn, offset = self._locate(position)
        number, place = divmod(offset, self._shuffle_size)
        key = (self._epoch, turn, number)
        if key != self._chunk_key:
            self._chunk = self._shuffled(self._read(key), key)
            self._chunk_key = key
        return self._chunk, place

    def _epoch_order(self, epoch: int) -> list[Shard]:
        seed = random_bits(self._seed, epoch) >> 32
        count = len(self._shards)
        order = distinct_windows(count, count, seed)
        return [
            self._shards[i] for i in order[self._number :: self._num_streams]
        ]

    def _locate(self, position: int) -> tuple[int, int]:
        """Shard by its turn in the epoch, and the sample's place in it."""
        if position < self._epoch_start:
            self._epoch, self._epoch_start = 0, 0
            self._order = self._epoch_order(0)
        while True:
            offset = position - self._epoch_start
            for turn, shard in enumerate(self._order):
                if offset < shard.num_samples:
                    return turn, offset
                offset -= shard.num_samples
            self._epoch_start = position - offset
            self._epoch += 1
            self._order = self._epoch_order(self._epoch)

    def _read(self, key: tuple[int, int, int]) -> list[Sample]:
        """Read a chunk in the shard's order; resume reading where possible."""
        epoch, turn, number = key
        shard = self._order[turn]
        first = number * self._shuffle_size
        at = self._reader_at
        if at is None or at[:2] != (epoch, turn) or at[2] > first:
            self._reader = read_samples(shard.path)
            at = (epoch, turn, 0)
        stop = min(first + self._shuffle_size, shard.num_samples)
        chunk = []
        for index in range(at[2], stop):
            sample = next(self._reader, None)
            if sample is None:
                raise ValueError(
                    f"{shard.path} has {index} samples, {shard.num_samples} "
                    "were counted: correct or remove its _stats.json"
                )
            if index >= first:
                chunk.append(sample)
        self._reader_at = (epoch, turn, stop)
        return chunk

    def _shuffled(
        self, chunk: list[Sample], key: tuple[int, int, int]
    ) -> list[Sample]:
        epoch, turn, number = key
        rng = np.random.RandomState(
            [self._seed, self._number, epoch, turn, number]
        )
        return [chunk[i] for i in rng.permutation(len(chunk))]
