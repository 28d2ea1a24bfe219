# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The embedded corpus: text that is on every machine, tokenised by bytes."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import numpy as np

VOCAB_SIZE = 256  # number of token ids: one per byte

END_OF_DOCUMENT = 0
"""Token after each file. Python source never contains the byte 0."""

_SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "__pycache__"}


class Corpus:
    """Documents, one after the other, as byte tokens."""

    def __init__(self, documents: Mapping[str, bytes]) -> None:
        """``documents``: by file, relative to the corpus' directory, sorted."""
        self.documents = documents
        end = bytes([END_OF_DOCUMENT])
        text = b"".join(text + end for text in documents.values())
        self.tokens = np.frombuffer(text, np.uint8)
        """``[num_tokens]``, read-only: the bytes of every document, each
        followed by :data:`END_OF_DOCUMENT`."""

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
        return cls({name: text for text, name in contents.items()})

    def split(self, fraction: float, seed: int) -> tuple[Corpus, Corpus]:
        """Hold out whole documents with this fraction of the tokens, by `seed`.

        The order is that of a hash of the seed and the name, so a file keeps
        its rank when other files come or go. Neither part is empty.
        """

        def rank(name: str) -> bytes:
            return hashlib.sha256(f"{seed}:{name}".encode()).digest()

        order = sorted(self.documents, key=rank)
        sizes = np.cumsum([len(self.documents[name]) + 1 for name in order])
        target = fraction * len(self.tokens)
        num_taken = int(np.searchsorted(sizes, target)) + 1
        if num_taken >= len(order):
            raise ValueError(
                f"taking {fraction} of {len(order)} documents leaves none: "
                "give a smaller fraction or more documents"
            )
        taken = {*order[:num_taken]}
        parts: tuple[dict[str, bytes], ...] = {}, {}
        for name, text in self.documents.items():
            parts[name in taken][name] = text
        return Corpus(parts[0]), Corpus(parts[1])

    def fingerprint(self) -> dict[str, str | int]:
        """Return facts that tell whether another corpus is equal.

        ``sha256`` is over names, sizes and tokens; ``num_bytes`` is that of
        the source, without end tokens.
        """
        sizes = [len(text) + 1 for text in self.documents.values()]
        digest = hashlib.sha256("\n".join(self.documents).encode())
        digest.update(np.cumsum([0, *sizes], dtype="<i8").tobytes())
        digest.update(self.tokens.data)
        return {
            "sha256": digest.hexdigest(),
            "num_files": len(self.documents),
            "num_bytes": len(self.tokens) - len(self.documents),
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
