# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Seeded draws, batches, and the data that a run has to keep."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.io import DataLoader

_MASK = 2**64 - 1


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


@functools.lru_cache(maxsize=2)
def permutation(number: int, seed: int | tuple[int, int]) -> np.ndarray:
    """Order of the integers below ``number``, int64 ``[number]``."""
    # RandomState's streams are frozen; Generator's may change with NumPy.
    return np.random.RandomState(seed).permutation(number)


def check_index(index: int, num_samples: int) -> int:
    """Return the index of a sample; an IndexError ends a loop over them."""
    if not 0 <= index < num_samples:
        raise IndexError(f"sample {index} of {num_samples}")
    return int(index)


def collate_batch(
    samples: Sequence[dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Stack samples of equal shapes: each entry ``[batch_size, ...]``."""
    keys = samples[0]
    return {key: np.stack([sample[key] for sample in samples]) for key in keys}


class BatchLoader(DataLoader):
    """Paddle's loader, with whose errors the loop over it ends.

    Without workers Paddle reads in a thread. Where that raises, the loop waits
    for ever: so the thread is this class's, one batch ahead of the loop.
    """

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if self.num_workers:
            try:
                yield from super().__iter__()
            except SystemError as error:  # of a queue that was closed
                raise RuntimeError(
                    "a worker could not read a batch: its error is above"
                ) from error
            return
        with ThreadPoolExecutor(1) as thread:
            ahead = None
            for indices in self.batch_sampler:
                batch = thread.submit(self._read, indices)
                if ahead:
                    yield to_tensors(ahead.result())
                ahead = batch
            if ahead:
                yield to_tensors(ahead.result())

    def _read(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
        return self.collate_fn([self.dataset[index] for index in indices])


def to_tensors(batch: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Put a batch on the device."""
    return {name: paddle.to_tensor(array) for name, array in batch.items()}


def check_fingerprint(
    found: Mapping[str, Any], run: Mapping[str, Any], else_: str = ""
) -> None:
    """Refuse other data than that of a run, whose ``run.json`` is ``run``."""
    known = run.get("data", {})
    if any(found.get(key) != known[key] for key in known):
        raise ValueError(
            f"the data has changed since the run: it was {known}, now it is "
            f"{found}: put it back{else_}"
        )


def check_held_out(changed: Mapping[str, Any], kind: str) -> None:
    """Refuse to validate on what another run trained on.

    ``changed`` is what differs between the runs' configs, ``kind`` that of the
    data: the seed does not choose what a memory-mapped dataset holds out.
    """
    if {"data.prefix", "data.validation_prefix"} & changed.keys():
        return
    chosen_by = ["data.validation_fraction", *["data.seed"] * (kind != "mmap")]
    for key in chosen_by:
        if key in changed:
            old, new = changed[key]
            raise ValueError(
                f"{key}={new}, and {old} in the run: it chooses the text for "
                f"validation, and the run trained on a part of it; set it to "
                f"{old}"
            )
