# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Storage that fails: full, missing or read-only, and what the user can do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paddle_adagc.files import atomic_write

logger = logging.getLogger(__name__)

_ADVICE = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space in your quota",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
}
_OF_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Whatever file these errors name, it was to be written."""
_OF_STORAGE = {errno.EIO, errno.ESTALE}


def check_directory(name: str, path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it is, or can become, a directory to write to.

    Nothing is made. ``PermissionError``: it takes no files.
    """
    directory = found = Path(path)
    while not found.exists() and found != found.parent:
        found = found.parent
    if not found.is_dir():
        raise ValueError(
            f"{name} is {str(directory)!r}, and {found} is a file: name "
            "another directory"
        )
    if not os.access(found, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{name} is {str(directory)!r}, and {found} cannot be written to: "
            "name another directory"
        )
    return directory


class StorageError(OSError):
    """A folder cannot be written to; the same command resumes later."""


@contextlib.contextmanager
def storage_errors(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Say what to do when ``directory`` cannot be written to."""
    folder = Path(directory)
    try:
        yield
    except OSError as error:
        if not _is_about(error, folder):
            raise
        raise StorageError(_message(folder, error)) from error


def _is_about(error: OSError, folder: Path) -> bool:
    """Tell whether an error is the storage's, or about a file in a folder."""
    if error.errno is None:
        return isinstance(error, PermissionError)
    if error.errno in _OF_WRITING:
        return True
    named = error.filename2 or error.filename
    if not isinstance(named, (str, os.PathLike)):
        return error.errno in _OF_STORAGE
    path = Path(named).absolute()
    return folder.absolute() in (path, *path.parents)


def _message(folder: Path, error: OSError) -> str:
    path = error.filename2 or error.filename or folder
    reason = error.strerror or "it takes no files"
    advice = _ADVICE.get(error.errno or errno.EACCES, "put the folder back")
    space = ""
    if folder.exists():
        space = f" ({shutil.disk_usage(folder).free / 1e6:,.0f} MB free)"
    return (
        f"cannot write to {path}: {reason}{space}\n{advice}, then give the "
        "same command again: it resumes"
    )


def atomic_write_json(
    path: str | os.PathLike[str], value: Any, indent: int | None = 2
) -> Path:
    """Write a value as JSON and a line's end; ``TypeError`` writes nothing.

    ``indent`` counts the spaces per level; None: all in one line.
    """
    return atomic_write(path, json.dumps(value, indent=indent) + "\n")


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

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def release_locks() -> None:
    """Give up all locks of this process."""
    for lock in [*_locks]:
        lock.release()


os.register_at_fork(after_in_child=release_locks)
