# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets of token lists for tests."""

import contextlib
import io
from pathlib import Path

import numpy as np
from adagc_lab.data.text import indexed_dataset


def write_random_dataset(prefix, seed):
    """Write 90 documents of 40 random bytes; return the config's ``data``."""
    rng = np.random.default_rng(seed)
    documents = [rng.integers(256, size=40) for _ in range(90)]
    write_indexed_dataset(prefix, documents, vocab_size=256)
    return {"kind": "mmap", "prefix": str(prefix)}


def write_indexed_dataset(prefix, documents, *, vocab_size):
    """Write token lists as ``prefix.bin`` and ``prefix.idx``."""
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    dtype = np.uint16 if vocab_size < 65500 else np.int32
    builder = indexed_dataset().MMapIndexedDatasetBuilder(
        f"{prefix}.bin", dtype
    )
    for document in documents:
        builder.add_item(document)
        builder.end_document()
    with contextlib.redirect_stdout(io.StringIO()):  # its statistics
        builder.finalize(f"{prefix}.idx")
