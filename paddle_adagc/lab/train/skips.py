# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Samples that a run skips, and the sampler that jumps over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from paddlenlp.utils.batch_sampler import DistributedBatchSampler


class Skips:
    """Which batch of the dataset's order a step draws.

    Args:
        intervals: Skipped samples: first one, and the one after the last.
        batch_size: Samples per step, over all ranks. Intervals that were cut
            for another size are widened to whole batches.
    """

    def __init__(
        self, intervals: Iterable[tuple[int, int]], batch_size: int
    ) -> None:
        self._size = batch_size
        self._intervals: list[tuple[int, int]] = []
        end = 0
        for first, stop in sorted(intervals):
            begin = max(first // batch_size, end)
            end = max(-(-stop // batch_size), end)
            if begin < end:
                self._intervals.append((begin, end))

    @property
    def num_batches(self) -> int:
        """Number of batches that are skipped."""
        return sum(stop - first for first, stop in self._intervals)

    def batch(self, step: int) -> int:
        """Return the index of the batch that a step draws, both from 0."""
        for first, stop in self._intervals:
            if step >= first:
                step += stop - first
        return step

    def sample(self, position: int) -> int:
        """Return the sample that comes at a position of the run's samples."""
        step, rest = divmod(position, self._size)
        return self.batch(step) * self._size + rest


class SkippingSampler(DistributedBatchSampler):
    """PaddleNLP's sampler, which resumes by a count of samples, with skips.

    Args:
        skips: What is skipped.
        *args: Arguments of PaddleNLP's sampler.
        **kwargs: Likewise.
    """

    def __init__(self, skips: Skips, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._skips = skips

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's samples of each micro-batch."""
        for positions in super().__iter__():
            samples = [self._skips.sample(position) for position in positions]
            if samples[-1] >= len(self.dataset):
                return
            yield samples
