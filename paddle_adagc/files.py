# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all.

A new file is written under a temporary name and put on the disk before it takes
its final name. A killed process or a full disk leaves the old file as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

TEMPORARY = ".tmp"
"""Ending of temporary files; only a killed process leaves one behind."""


@contextlib.contextmanager
def temporary_path(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> Iterator[Path]:
    """Give a path to write to, whose file takes the place of ``path``.

    After an exception ``path`` is untouched and the temporary file removed.
    Missing folders of ``path`` are made. The temporary file lies in ``folder``,
    on the same file system; default: the folder of ``path``.
    """
    target = Path(path)
    make_directory(target.parent)
    # Processes of several hosts, or containers, have the same number.
    token = f"{os.getpid()}.{secrets.token_hex(4)}"
    name = f".{target.name}.{token}{TEMPORARY}"
    temporary = Path(target.parent if folder is None else folder) / name
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


def atomic_write_json(
    path: str | os.PathLike[str], value: Any, indent: int | None = 2
) -> Path:
    """Write a value as JSON and a line's end; ``TypeError`` writes nothing.

    ``indent`` counts the spaces per level; None: all in one line.
    """
    return atomic_write(path, json.dumps(value, indent=indent) + "\n")


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its parents; new ones are put on the disk."""
    directory = Path(path)
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync(directory.parent)
    return directory


class FolderLock:
    """A lock on a folder, of this process alone.

    It ends with the process, even if that is killed. A forked child, such as a
    worker that loads data, has the descriptor, too, and would keep the lock: it
    closes it. On a file system without locks there is only a warning.

    Raises:
        BlockingIOError: The folder is locked.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._descriptor: int | None = os.open(directory, os.O_RDONLY)
        _locks.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise
        except OSError as error:
            text = "no lock on %s (%s): do not start a second run there"
            logger.warning(text, directory, error)

    def is_on(self, directory: str | os.PathLike[str]) -> bool:
        """Whether it is this folder's, and not released."""
        if self._descriptor is None:
            return False
        return os.path.samestat(os.fstat(self._descriptor), os.stat(directory))

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def is_locked_here(directory: str | os.PathLike[str]) -> bool:
    """Whether this process holds the lock of a folder."""
    return any(lock.is_on(directory) for lock in _locks)


def release_locks() -> None:
    """Give up all locks of this process."""
    for lock in [*_locks]:
        lock.release()


os.register_at_fork(after_in_child=release_locks)


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_regular_file(path: str | os.PathLike[str], hint: str = "") -> Path:
    """Return ``path`` if a file is there to be read; nothing is opened.

    Raises:
        FileNotFoundError: Nothing is there, or a link to nothing; ``hint``
            follows.
        ValueError: It is a directory, a FIFO, or another special file.
    """
    file = Path(path)
    if file.is_file():
        return file
    if file.is_dir():
        raise ValueError(f"{file} is a directory, not a file")
    if file.exists():
        raise ValueError(f"{file} is a FIFO or a device, not a regular file")
    if file.is_symlink():
        raise FileNotFoundError(
            f"{file} is a link to {os.readlink(file)}, which does not exist"
            f"{hint}"
        )
    raise FileNotFoundError(f"{file} does not exist{hint}")
