# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where each sample starts: pure functions of the seed and the sample's index.

An order maps sample ``i`` to the position of its first token. Nothing is
drawn in sequence, so a resumed run starts at any sample without replay, and
every rank and worker sees the same order.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Protocol

import numpy as np

_MASK = 2**64 - 1


class Order(Protocol):
    """Start of every sample; ``ndarray`` and ``tuple`` of ints are orders."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> int:
        """Position of the first token of sample ``index``."""
        ...


@dataclasses.dataclass(frozen=True)
class RandomOrder:
    """Starts drawn uniformly and independently from ``[0, num_starts)``."""

    num_starts: int
    num_samples: int
    seed: int

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        """Start of sample ``index``."""
        return random_bits(self.seed, index) % self.num_starts


@dataclasses.dataclass(frozen=True)
class RandomChoiceOrder:
    """Starts drawn uniformly, with replacement, from ``starts``."""

    starts: tuple[int, ...]
    num_samples: int
    seed: int

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        """Start of sample ``index``."""
        return self.starts[random_bits(self.seed, index) % len(self.starts)]


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """Every window once per epoch, in a new order for each epoch.

    Window ``w`` starts at ``w * seq_length``. Memory: 8 bytes a window.
    """

    num_windows: int
    seq_length: int
    num_samples: int
    seed: int

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        """Start of sample ``index``."""
        epoch, position = divmod(index, self.num_windows)
        windows = _epoch_permutation(self.num_windows, self.seed, epoch)
        return int(windows[position]) * self.seq_length


def random_bits(seed: int, index: int) -> int:
    """Draw ``index`` of the stream ``seed``, as an integer in [0, 2**64).

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), whose state is a counter,
    with the seed scrambled first so that neighbouring seeds share no draws.
    """
    counter = _scramble(seed) + (index + 1) * 0x9E3779B97F4A7C15
    return _scramble(counter & _MASK)


def _scramble(z: int) -> int:
    """SplitMix64's output function, a bijection of 64-bit integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def distinct_windows(num_windows: int, count: int, seed: int) -> np.ndarray:
    """Draw ``count`` different windows of ``num_windows``, int64 [count]."""
    return np.random.RandomState(seed).permutation(num_windows)[:count]


@functools.lru_cache(maxsize=2)
def _epoch_permutation(num_windows: int, seed: int, epoch: int) -> np.ndarray:
    # RandomState's streams are frozen; Generator's may change with NumPy.
    return np.random.RandomState([seed, epoch]).permutation(num_windows)
