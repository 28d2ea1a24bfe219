# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A file that only grows, and knows the checksum of what it holds."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

_BLOCK = 2**20


class AppendedFile:
    """Append to a file; its SHA-256 costs no second reading.

    The first ``num_bytes`` of a file that exists stay; the rest is cut off.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._path = path
        self._digest = hashlib.sha256()
        self._num_bytes = num_bytes
        self._file = path.open("ab+")
        self._file.truncate(num_bytes)
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            self._digest.update(block)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)
        self._digest.update(data)
        self._num_bytes += len(data)

    def flush(self) -> None:
        """Hand all data to the operating system; refuse a lost file."""
        self._file.flush()
        mine = os.fstat(self._file.fileno())
        if not self._path.exists() or not os.path.samestat(
            mine, self._path.stat()
        ):
            raise FileNotFoundError(
                errno.ENOENT, "the file is gone", str(self._path)
            )

    def sync(self) -> dict[str, Any]:
        """Put all data on the disk; return the size and the checksum."""
        self.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self._num_bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()
