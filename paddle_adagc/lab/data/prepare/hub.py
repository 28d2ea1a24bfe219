# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that Hugging Face ``datasets`` streams, such as C4-en."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paddle_adagc.lab.data.prepare.chunks import Block
from paddle_adagc.lab.data.prepare.config import HubConfig

if TYPE_CHECKING:
    from datasets import IterableDataset


class HubShard:
    """One data file of a streamed dataset; a line is one example as JSON.

    Args:
        dataset: The examples of this file alone.
        name: Name of the shard in messages and in the manifest.
        origin: Text that changes when the file does.
        text_field: The one field that is kept.
    """

    text_format = "jsonl"
    num_raw_bytes: int | None = None

    def __init__(
        self,
        dataset: IterableDataset,
        *,
        name: str,
        origin: str,
        text_field: str,
    ) -> None:
        self.name = name
        self._dataset = dataset
        self._origin = origin
        self._field = text_field
        self._record: dict[str, Any] = {}

    def record(self) -> dict[str, Any]:
        """Origin (with the commit on the hub) and SHA-256 of the texts."""
        return self._record

    def is_unchanged(self, record: dict[str, Any]) -> bool:
        """Compare the origins."""
        return record.get("origin") == self._origin

    def blocks(self, chunk_bytes: int) -> Iterator[Block]:
        """See :class:`chunks.Source`."""
        digest = hashlib.sha256()
        lines: list[bytes] = []
        size = count = 0
        for count, line in enumerate(self._lines(), start=1):
            lines.append(line)
            size += len(line)
            if size >= chunk_bytes:
                yield self._block(lines, count, digest)
                lines, size = [], 0
        if lines:
            yield self._block(lines, count, digest)
        self._record = {
            "name": self.name,
            "format": "hub",
            "origin": self._origin,
            "sha256": digest.hexdigest(),
        }

    def _block(
        self, lines: list[bytes], last_line: int, digest: hashlib._Hash
    ) -> Block:
        payload = b"".join(lines)
        digest.update(payload)
        return Block(payload, last_line - len(lines) + 1, len(payload))

    def _lines(self) -> Iterator[bytes]:
        examples = iter(self._dataset)
        count = 0
        while True:
            try:
                example = next(examples, None)
            except Exception as error:  # of any file system or file format
                raise ValueError(
                    f"{self.name}, after example {count}: "
                    f"{type(error).__name__}: {error}"
                ) from error
            if example is None:
                return
            count += 1
            kept = {k: v for k, v in example.items() if k == self._field}
            yield json.dumps(kept, default=lambda v: [repr(v)]).encode() + b"\n"


def find_shards(config: HubConfig, text_field: str) -> list[HubShard]:
    """Look up the dataset; make one source of each data file.

    Raises:
        FileNotFoundError: There is no such dataset.
        ValueError: It has no such configuration or split.
        OSError: The hub cannot be reached.
    """
    from datasets import load_dataset_builder

    builder = load_dataset_builder(
        config.path, config.name, revision=config.revision
    )
    dataset = builder.as_streaming_dataset(split=config.split)
    count = dataset.num_shards
    names, origins = _data_files(builder, config, count)
    return [
        HubShard(
            dataset.shard(num_shards=count, index=index),
            name=names[index],
            origin=origins[index],
            text_field=text_field,
        )
        for index in range(count)[: config.max_shards]
    ]


def _data_files(
    builder: Any, config: HubConfig, count: int
) -> tuple[list[str], list[str]]:
    """Return the names and origins of the shards."""
    files = (builder.config.data_files or {}).get(config.split, [])
    if len(files) != count or len(files.origin_metadata) != count:
        names = [f"{config.path}, shard {index}" for index in range(count)]
        return names, [f"{builder.hash}: {name}" for name in names]
    metadata = files.origin_metadata
    return list(map(str, files)), [
        ": ".join([str(file), *map(str, version)])
        for file, version in zip(files, metadata, strict=True)
    ]
