# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What to make a dataset of, as a typed and checked config."""

from __future__ import annotations

import dataclasses
import os
from typing import Literal

from paddle_adagc.checks import check_choice, check_integer, check_real

TEXT_FORMATS = ("auto", "jsonl", "lines", "text")
"""How local files hold documents: by the file's ending; one JSON object a
line; one document a line; one document a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubConfig:
    """A dataset that Hugging Face ``datasets`` streams."""

    path: str
    """Name on the hub (``"allenai/c4"``), or a local folder."""

    name: str | None = None
    """Configuration of the dataset (``"en"``)."""

    split: str = "train"
    """Part of the dataset; default ``"train"``."""

    revision: str | None = None
    """Commit, tag or branch; default: the newest."""

    max_shards: int | None = None
    """Read the first shards (data files) alone; default: all of them."""

    def __post_init__(self) -> None:
        if self.max_shards is not None:
            check_integer("max_shards", self.max_shards, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Source, tokenizer and destination of a tokenised dataset.

    Raises:
        ValueError: A value is out of range, or there is not exactly one
            source.
        TypeError: A value is of the wrong type.
    """

    output: str
    """Path of the dataset without ``.bin`` and ``.idx``."""

    inputs: tuple[str, ...] = ()
    """Local files and folders. Of a folder all files count, by name."""

    hub: HubConfig | None = None
    """The source instead of ``inputs``."""

    tokenizer: str
    """``"bytes"``, a ``tokenizer.json``, a SentencePiece ``.model``, a folder
    with one of them, or the name of a model on the Hugging Face hub."""

    eos_token: str | None = None
    """Token after each document; default: the tokenizer's own."""

    text_format: str = "auto"
    """One of :data:`TEXT_FORMATS`. ``"auto"`` takes ``.json`` and ``.jsonl``
    for ``"jsonl"`` and ``.txt`` for ``"lines"``, with or without ``.gz``."""

    text_field: str = "text"
    """Field of the JSON object or of the hub's example; default ``"text"``."""

    validation_fraction: float = 0.0
    """Share of the documents, chosen by a hash of their text, that goes to
    ``<output>_validation`` instead, in [0, 1); default 0."""

    on_error: Literal["stop", "skip"] = "stop"
    """A bad document stops the work, or is left out and counted."""

    num_workers: int = dataclasses.field(
        default_factory=lambda: len(os.sched_getaffinity(0))
    )
    """Worker processes; default: one a core. The result does not depend on
    it."""

    chunk_mib: float = 4.0
    """Text a worker gets at a time, in MiB; default 4. Memory grows with it;
    the result does not depend on it."""

    def __post_init__(self) -> None:
        if bool(self.inputs) == (self.hub is not None):
            raise ValueError(
                f"inputs is {self.inputs!r} and hub {self.hub!r}: give local "
                "files or a dataset of the hub"
            )
        if not self.output or self.output.endswith((".bin", ".idx", "/")):
            raise ValueError(
                f"output is {self.output!r}: give the dataset's path without "
                ".bin and .idx"
            )
        check_choice("text_format", self.text_format, TEXT_FORMATS)
        check_choice("on_error", self.on_error, ("stop", "skip"))
        if (
            not 0
            <= check_real("validation_fraction", self.validation_fraction)
            < 1
        ):
            raise ValueError(
                f"validation_fraction is {self.validation_fraction}: give one "
                "in [0, 1)"
            )
        check_integer("num_workers", self.num_workers, 1)
        if not 0 < check_real("chunk_mib", self.chunk_mib) <= 64:
            raise ValueError(
                f"chunk_mib is {self.chunk_mib}: give one in (0, 64]"
            )

    @property
    def chunk_bytes(self) -> int:
        """``chunk_mib`` in bytes."""
        return max(int(self.chunk_mib * 2**20), 1)
