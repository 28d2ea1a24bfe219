# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory-mapped ``.bin``/``.idx`` datasets of PaddleNLP, as token streams.

PaddleNLP's ``causal_dataset`` is not used: there, sample ``i`` depends on the
length of the run, the index that it caches on disk survives a rewritten
dataset, and a rank waits for ever for an index file that an interrupted run
left broken.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
from typing import Any

import numpy as np

from adagc_lab.checksums import sampled_sha256, sha256

_MAX_UINT16_VOCAB = 65500  # as in PaddleNLP's own choice of the dtype


def library() -> Any:
    """Return PaddleNLP's module of the format, or PaddleFormers' copy."""
    has_nlp = importlib.util.find_spec("paddlenlp") is not None
    name = "paddlenlp" if has_nlp else "paddleformers"
    return importlib.import_module(f"{name}.data.indexed_dataset")


def token_dtype(vocab_size: int) -> Any:
    """uint16 for vocabularies below 65,500, int32 above."""
    return np.uint16 if vocab_size < _MAX_UINT16_VOCAB else np.int32


class IndexedTokens:
    """A memory-mapped dataset as one stream of tokens.

    ``prefix`` is its path without ``.bin`` and ``.idx``.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        path, index = prefix + ".bin", prefix + ".idx"
        missing = [file for file in (path, index) if not os.path.isfile(file)]
        if missing:
            raise FileNotFoundError(
                f"{' and '.join(missing)} not found: the prefix is the path "
                "without .bin and .idx; tools/prepare_data.py or PaddleNLP's "
                "create_pretraining_data.py makes both files"
            )
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found = library().MMapIndexedDataset.Index(index, True)
            dtype, sizes = np.dtype(found.dtype), np.array(found.sizes)
            ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            documents = ends[found.doc_idx]
        except Exception as error:  # wrong bytes raise anything
            raise ValueError(f"{index} is no index: {error!r}") from error
        needed, size = int(ends[-1]) * dtype.itemsize, os.path.getsize(path)
        if size != needed or not needed:
            raise ValueError(
                f"{path} has {size} bytes, but {index} describes {needed}: "
                "write the dataset again or copy it completely"
            )
        self.boundaries = np.unique(np.concatenate([documents, ends[[0, -1]]]))
        """``[num_documents + 1]`` int64: first token of each document that is
        not empty, and the end."""
        self._tokens = np.asarray(np.memmap(path, dtype, mode="r"))

    def documents(self, first: int, stop: int) -> np.ndarray:
        """Return the tokens of documents ``first`` to ``stop - 1``, a view."""
        return self._tokens[slice(*self.boundaries[[first, stop]].tolist())]

    def all(self) -> np.ndarray:
        return self.documents(0, len(self.boundaries) - 1)

    def split(self, fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Hold out the last ``fraction`` of the documents, at least one."""
        count = len(self.boundaries) - 1
        if count < 2:
            raise ValueError(
                f"{self.prefix} has {count} documents: training and "
                "validation need one each at least; end each document of the "
                "dataset"
            )
        cut = count - min(max(round(fraction * count), 1), count - 1)
        return self.documents(0, cut), self.documents(cut, count)

    def fingerprint(self) -> dict[str, str | int]:
        """Return facts by which the dataset can be recognised.

        ``sha256`` is that of the ``.idx``, ``sampled_sha256`` that of 1,024
        pieces of 4 KiB spread evenly over the ``.bin``, or of all of it.
        """
        return {
            "sha256": sha256(self.prefix + ".idx"),
            "sampled_sha256": sampled_sha256(self.prefix + ".bin"),
            "num_documents": len(self.boundaries) - 1,
            "num_tokens": int(self.boundaries[-1]),
        }
