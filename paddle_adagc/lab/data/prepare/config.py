# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to make a dataset of, as a typed and checked config."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from paddle_adagc.lab.data.prepare.sources import TextFormat
from paddle_adagc.lab.section import Count, Real, section


@section
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

    max_shards: Count | None = None
    """Read the first shards (data files) alone; default: all of them."""


@section
class PrepareConfig:
    """Source, tokenizer and destination of a tokenised dataset.

    Raises:
        ValueError: A value is of the wrong type or out of range, or there is
            not exactly one source.
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

    text_format: TextFormat = "auto"
    """One of :data:`.sources.TEXT_FORMATS`. ``"auto"`` takes ``.json`` and
    ``.jsonl`` for ``"jsonl"`` and ``.txt`` for ``"lines"``, with or without
    ``.gz``."""

    text_field: str = "text"
    """Field of the JSON object or of the hub's example; default ``"text"``."""

    validation_fraction: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    """Share of the documents, chosen by a hash of their text, that goes to
    ``<output>_validation`` instead, in [0, 1); default 0."""

    on_error: Literal["stop", "skip"] = "stop"
    """A bad document stops the work, or is left out and counted."""

    num_workers: Count = dataclasses.field(
        default_factory=lambda: len(os.sched_getaffinity(0))
    )
    """Worker processes; default: one a core. The result does not depend on
    it."""

    @field_validator("output")
    @classmethod
    def _check_output(cls, output: str) -> str:
        if not output or output.endswith((".bin", ".idx", "/")):
            raise ValueError(
                f"{output!r}: give the dataset's path without .bin and .idx"
            )
        return output

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if bool(self.inputs) == (self.hub is not None):
            raise ValueError(
                f"inputs is {self.inputs!r} and hub {self.hub!r}: give local "
                "files or a dataset of the hub"
            )
        return self
