# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to train on, and what to make a dataset of: checked configs."""

from __future__ import annotations

import warnings
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from adagc_lab.data.sources import TextFormat
from adagc_lab.section import Count, Natural, PathText, Real, section

Kind = Literal["stdlib", "fixed_sequences", "mmap", "shapes", "webdataset"]

TEXT_KINDS: tuple[Kind, ...] = ("stdlib", "fixed_sequences", "mmap")
"""Windows of tokens, for decoders."""

IMAGE_TEXT_KINDS: tuple[Kind, ...] = ("shapes", "webdataset")
"""Pairs of an image and its caption, for CLIP."""

_OPTIONAL: dict[str, Kind] = {
    "num_sequences": "fixed_sequences",
    "prefix": "mmap",
    "validation_prefix": "mmap",
    "shards": "webdataset",
    "tokenizer": "webdataset",
    "shuffle_size": "webdataset",
}
"""Fields that one kind alone reads."""

_NEEDED = ("prefix", "shards", "tokenizer")  # by that kind


@section
class DataConfig:
    """Training and validation data of a run."""

    kind: Kind = "stdlib"
    """``"stdlib"``: random windows of the Python standard library's source,
    cut at any byte, with replacement (the noisy regime);
    ``"fixed_sequences"``: draws from ``num_sequences`` fixed windows of it
    (the low-noise regime, which stands in for huge batches);
    ``"mmap"``: a memory-mapped ``.bin``/``.idx`` dataset, cut into windows
    that are shuffled anew in every epoch. For CLIP: ``"shapes"``: drawings of
    coloured shapes, made on the spot, with captions that describe them;
    ``"webdataset"``: tar shards of images and captions, as LAION's."""

    seq_length: Count = 32
    """Tokens a sample; default 32. CLIP's captions have the length of
    ``model.context_length`` instead."""

    seed: Annotated[Natural, Field(lt=2**32)] = 0
    """Seed of the order of the samples, of the fixed sequences and of the
    embedded corpus' split, in [0, 2**32); default 0."""

    num_sequences: Count = 64
    """Number of fixed sequences; default 64. Read for ``"fixed_sequences"``
    alone."""

    prefix: PathText | None = None
    """Path of the memory-mapped dataset without ``.bin`` and ``.idx``. Read,
    and needed, for ``"mmap"`` alone."""

    validation_prefix: PathText | None = None
    """Path of another memory-mapped dataset for the validation; default: a
    share of ``prefix``. Read for ``"mmap"`` alone."""

    shards: PathText | None = None
    """Tar files of images (``jpg``, ``jpeg``, ``png``, ``webp``) and captions
    (``txt``, or ``caption`` in ``json``): paths with braces or wildcards, such
    as ``laion400m/{00000..41455}.tar``. Read, and needed, for
    ``"webdataset"`` alone."""

    tokenizer: str | None = None
    """CLIP's ``tokenizer.json``. Read, and needed, for ``"webdataset"``
    alone."""

    shuffle_size: Count = 1000
    """Neighbouring samples of a shard that are shuffled together, in
    memory, not decoded; default 1000. Read for ``"webdataset"`` alone."""

    num_workers: Natural = 0
    """Processes per device that prepare batches; default 0: the one that
    trains. Part of the order of ``"webdataset"``'s samples."""

    validation_fraction: Annotated[Real, Field(gt=0, lt=1)] = 0.05
    """Share of the data held out for validation, in (0, 1); default 0.05: of
    the embedded corpus' tokens (whole documents), of a memory-mapped dataset's
    documents (the last ones, unless there is a ``validation_prefix``), of the
    drawings' scenes, of the shards (the last ones)."""

    validation_size: Count = 64
    """Number of validation samples, the same at every evaluation; default
    64."""

    @field_validator("prefix", "validation_prefix")
    @classmethod
    def _check_ending(cls, path: str | None) -> str | None:
        if path is not None and path.endswith((".bin", ".idx")):
            raise ValueError(f"{path!r}: leave its ending out, {path[:-4]!r}")
        return path

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        for name, kind in _OPTIONAL.items():
            value = getattr(self, name)
            if self.kind != kind and value != getattr(type(self), name):
                warnings.warn(
                    f"{name}={value!r} is ignored: kind={self.kind!r} does "
                    f"not read it (kind={kind!r} does)",
                    stacklevel=4,
                )
            if self.kind == kind and not value and name in _NEEDED:
                raise ValueError(
                    f"{name} is {value!r}: {kind!r} needs the path"
                )
        return self


@section
class PrepareConfig:
    """Source, tokenizer and destination of a tokenised dataset."""

    output: PathText  # path of the dataset without .bin and .idx
    inputs: tuple[str, ...] = ()
    """Local files and folders. Of a folder all files count, by name."""

    hub: str | None = None
    """The source instead of ``inputs``: a dataset that Hugging Face
    ``datasets`` streams, by its name (``"allenai/c4"``) or local folder."""

    hub_name: str | None = None  # configuration of the hub's dataset ("en")
    tokenizer: str
    """``"bytes"``, a ``tokenizer.json``, a SentencePiece ``.model``, a folder
    with one of them, or the name of a model on the Hugging Face hub."""

    eos_token: str | None = None  # after each document; None: the tokenizer's
    text_format: TextFormat = "auto"
    text_field: str = "text"  # of the JSON object or of the hub's example
    validation_fraction: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    """Share of the documents, chosen by a hash of their text, that goes to
    ``<output>_validation`` instead."""

    on_error: Literal["stop", "skip"] = "stop"
    """A bad document stops the work, or is left out and counted."""

    num_workers: Count | None = None  # processes; None: one a core

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
        if self.hub_name is not None and self.hub is None:
            raise ValueError("hub_name needs hub, the dataset's name")
        return self
