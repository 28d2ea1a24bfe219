# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The embedded corpus: text that is on every machine, tokenised by bytes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np

VOCAB_SIZE = 256
"""Number of token ids: one per byte."""

END_OF_DOCUMENT = 0
"""Token after each file. Python source never contains the byte 0."""

_SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "__pycache__"}


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Documents, one after the other, as byte tokens."""

    tokens: np.ndarray
    """``[num_tokens]`` uint8: the bytes of every document, each document
    followed by :data:`END_OF_DOCUMENT`."""

    boundaries: np.ndarray
    """``[num_documents + 1]`` int64: document ``d`` is
    ``tokens[boundaries[d]:boundaries[d + 1]]``, the end token included."""

    names: tuple[str, ...]
    """File of each document, relative to the corpus' directory, sorted."""

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str]) -> Corpus:
        """Read every ``*.py`` file below ``directory``, sorted by name.

        Installed packages and ``__pycache__`` are left out, and so are empty
        files and files with the content of an earlier one: no text can be on
        both sides of a split by file.
        """
        root = Path(directory)
        names = []
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = {*subfolders} - _SKIPPED_DIRECTORIES
            parent = Path(folder).relative_to(root)
            names += [
                (parent / file).as_posix()
                for file in files
                if file.endswith(".py")
            ]
        contents: dict[bytes, str] = {}
        for name in sorted(names):
            contents.setdefault((root / name).read_bytes(), name)
        contents.pop(b"", None)
        if not contents:
            raise FileNotFoundError(f"no Python source below {str(root)!r}")
        end = bytes([END_OF_DOCUMENT])
        documents = [np.frombuffer(text + end, np.uint8) for text in contents]
        return cls._join(documents, contents.values())

    @classmethod
    def _join(cls, documents: list[np.ndarray], names: Iterable[str]) -> Corpus:
        tokens = np.concatenate(documents)
        boundaries = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        tokens.flags.writeable = boundaries.flags.writeable = False
        return cls(tokens, boundaries, tuple(names))

    def split(self, fraction: float, seed: int) -> tuple[Corpus, Corpus]:
        """Hold out whole documents with this fraction of the tokens, by `seed`.

        The order is that of a hash of the seed and the name, so a file keeps
        its rank when other files come or go. Neither part is empty.
        """

        def rank(document: int) -> bytes:
            text = f"{seed}:{self.names[document]}"
            return hashlib.sha256(text.encode()).digest()

        order = sorted(range(len(self.names)), key=rank)
        taken_tokens = np.cumsum(np.diff(self.boundaries)[order])
        target = fraction * len(self.tokens)
        num_taken = int(np.searchsorted(taken_tokens, target)) + 1
        if num_taken >= len(order):
            raise ValueError(
                f"taking {fraction} of {len(order)} documents leaves none: "
                "give a smaller fraction or more documents"
            )
        return self._select(order[num_taken:]), self._select(order[:num_taken])

    def _select(self, documents: list[int]) -> Corpus:
        chosen = sorted(documents)
        ends = self.boundaries
        texts = [self.tokens[ends[d] : ends[d + 1]] for d in chosen]
        return self._join(texts, (self.names[d] for d in chosen))

    def fingerprint(self) -> dict[str, str | int]:
        """Return facts that tell whether another corpus is equal.

        ``sha256`` is over names, sizes and tokens; ``num_bytes`` is that of
        the source, without end tokens.
        """
        digest = hashlib.sha256("\n".join(self.names).encode())
        digest.update(self.boundaries.astype("<i8").tobytes())
        digest.update(self.tokens.data)
        return {
            "sha256": digest.hexdigest(),
            "num_files": len(self.names),
            "num_bytes": len(self.tokens) - len(self.names),
            "python": platform.python_version(),
        }


@functools.lru_cache(maxsize=1)
def load_stdlib_corpus() -> Corpus:
    """Return the source of the running interpreter's standard library.

    Losses of two machines are comparable only where :meth:`Corpus.fingerprint`
    agrees: another version, or a distribution that leaves modules out, gives
    other text. CPython 3.11 has about 30 MB in 1,700 files.
    """
    return Corpus.from_directory(sysconfig.get_path("stdlib"))
