# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP's byte-pair tokens of captions, from a local file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

START = "<|startoftext|>"
END = "<|endoftext|>"


class CaptionTokenizer:
    """Captions to rows of equal length.

    Args:
        path: CLIP's ``tokenizer.json``, as the Hugging Face hub has it.
        context_length: Tokens a row, at least 3.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has no :data:`START` or :data:`END`, or
            ``context_length`` is too small.
    """

    def __init__(
        self, path: str | os.PathLike[str], context_length: int
    ) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"there is no tokenizer {path}: data.tokenizer names CLIP's "
                "tokenizer.json"
            )
        if context_length < 3:
            raise ValueError(
                f"context_length is {context_length}: give at least 3"
            )
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.context_length = context_length
        self.start_token = self._token(path, START)
        self.end_token = self._token(path, END)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self._tokenizer.get_vocab_size()

    def __call__(self, caption: str) -> np.ndarray:
        """Tokens between start and end, cut off or padded with 0.

        Returns:
            int64 ``[context_length]``.
        """
        ids = self._tokenizer.encode(caption, add_special_tokens=False).ids
        kept = ids[: self.context_length - 2]
        row = np.zeros(self.context_length, np.int64)
        row[: len(kept) + 2] = [self.start_token, *kept, self.end_token]
        return row

    def _token(self, path: str | os.PathLike[str], name: str) -> int:
        token = self._tokenizer.token_to_id(name)
        if token is None:
            raise ValueError(f"{path} has no token {name!r}: give CLIP's")
        return token
