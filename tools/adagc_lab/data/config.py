# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to train on."""

from __future__ import annotations

import warnings
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from adagc_lab.section import Count, Natural, PathText, Real, Section

Kind = Literal["stdlib", "fixed_sequences", "mmap", "shapes"]

TEXT_KINDS: tuple[Kind, ...] = ("stdlib", "fixed_sequences", "mmap")
"""Windows of tokens, for decoders."""

IMAGE_TEXT_KINDS: tuple[Kind, ...] = ("shapes",)
"""Pairs of an image and its caption, for CLIP."""

_READ_BY = {
    "num_sequences": "fixed_sequences",
    "prefix": "mmap",
    "validation_prefix": "mmap",
}
"""Fields that one kind alone reads."""


class DataConfig(Section):
    """Training and validation data of a run."""

    kind: Kind = "stdlib"
    """``"stdlib"``: random windows of the Python standard library's source,
    cut at any byte, with replacement (the noisy regime);
    ``"fixed_sequences"``: draws from ``num_sequences`` fixed windows of it
    (the low-noise regime, which stands in for huge batches);
    ``"mmap"``: a memory-mapped ``.bin``/``.idx`` dataset, cut into windows
    that are shuffled anew in every epoch. For CLIP: ``"shapes"``: drawings of
    coloured shapes, made on the spot, with captions that describe them."""

    seq_length: Count = 32
    """Tokens a sample; default 32. CLIP's captions have the length of
    ``model.context_length`` instead."""

    seed: Annotated[Natural, Field(lt=2**32)] = 0
    """Seed of the order of the samples, of the fixed sequences and of the
    embedded corpus' split, in [0, 2**32); default: ``train.seed``."""

    num_sequences: Count = 64
    """Number of fixed sequences; default 64. Read for ``"fixed_sequences"``
    alone."""

    prefix: PathText | None = None
    """Path of the memory-mapped dataset without ``.bin`` and ``.idx``. Read,
    and needed, for ``"mmap"`` alone."""

    validation_prefix: PathText | None = None
    """Path of another memory-mapped dataset for the validation; default: a
    share of ``prefix``. Read for ``"mmap"`` alone."""

    num_workers: Natural = 0
    """Processes per device that prepare batches; default 0: the one that
    trains."""

    validation_fraction: Annotated[Real, Field(gt=0, lt=1)] = 0.05
    """Share of the data held out for validation, in (0, 1); default 0.05: of
    the embedded corpus' tokens (whole documents), of a memory-mapped dataset's
    documents (the last ones, unless there is a ``validation_prefix``), of the
    drawings' scenes."""

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
        if self.kind == "mmap" and not self.prefix:
            raise ValueError("kind='mmap' needs prefix, the dataset's path")
        for name, kind in _READ_BY.items():
            default = type(self).model_fields[name].default
            if self.kind != kind and getattr(self, name) != default:
                warnings.warn(
                    f"data.{name} is ignored: kind={self.kind!r} does not read "
                    "it",
                    stacklevel=3,
                )
        return self
