# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all.

A new file is written under a temporary name and put on the disk before it takes
its final name. A killed process or a full disk leaves the old file as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp"
"""Ending of temporary files; only a killed process leaves one behind."""

LAST_FILES = ("trainer_state.*", "scheduler.*")
"""What a Trainer writes after the weights, and after the optimizer."""


def is_finished(checkpoint: Path) -> bool:
    """Whether a Trainer has saved the last files of a checkpoint."""
    return all(any(checkpoint.glob(pattern)) for pattern in LAST_FILES)


@contextlib.contextmanager
def temporary_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of ``path``.

    After an exception ``path`` is untouched and the temporary file removed.
    Missing folders of ``path`` are made.
    """
    target = Path(path)
    make_directory(target.parent)
    # Processes of several hosts, or containers, have the same number.
    token = f"{os.getpid()}.{secrets.token_hex(4)}"
    temporary = target.with_name(f".{target.name}.{token}{TEMPORARY}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file, text as UTF-8; return its path."""
    data = content.encode() if isinstance(content, str) else content
    with temporary_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its parents; new ones are put on the disk."""
    directory = Path(path)
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync(directory.parent)
    return directory


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems refuse it for a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
