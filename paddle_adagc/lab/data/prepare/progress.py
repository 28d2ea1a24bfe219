# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress bar with rate and time left."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from tqdm import tqdm

from paddle_adagc.lab.data.prepare.chunks import Source
from paddle_adagc.lab.data.prepare.encode import Result


class Progress:
    """Progress in bytes of the sources, shown on a terminal only.

    The rate is this run's own: what an earlier one had done counts as done,
    not as work. A streamed dataset tells no size: the time left comes from
    its shards' average so far.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        sizes = [source.num_raw_bytes for source in sources]
        known = [size for size in sizes if size is not None]
        self._is_known = len(known) == len(sizes)
        self._num_sources = len(sources)
        self._num_done = self._num_documents = self._num_tokens = 0
        self._bar = tqdm(
            total=sum(known) if self._is_known else None,
            unit="B",
            unit_scale=True,
            smoothing=0,
            disable=None,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def skip(self, source: Source) -> None:
        """Count a source that an earlier run had finished."""
        self._num_done += 1
        self._advance(source.num_raw_bytes or 0, is_new=False)

    def add(self, result: Result) -> None:
        """Count a chunk."""
        self._num_documents += sum(result.header.num_documents)
        self._num_tokens += sum(result.header.num_tokens)
        self._bar.set_postfix_str(
            f"{self._num_documents:,} documents, {self._num_tokens:,} tokens",
            refresh=False,
        )
        self._advance(result.num_raw_bytes, is_new=result.is_new)

    def end_source(self) -> None:
        """Count a source whose last chunk has been handed out."""
        self._num_done += 1
        if not self._is_known:
            self._bar.total = self._bar.n * self._num_sources // self._num_done

    def _advance(self, num_bytes: int, *, is_new: bool) -> None:
        if not is_new and not self._bar.disable:
            self._bar.initial += num_bytes
        self._bar.update(num_bytes)
