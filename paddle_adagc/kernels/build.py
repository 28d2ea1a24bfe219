# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles ``host.cpp`` when it is first needed, and loads it.

Paddle's operators cost some microseconds per tensor, which is most of a clip
step for models with thousands of tensors. The compiled loops take the whole
list at once. They need a C++ compiler, once: the library is kept in
``$XDG_CACHE_HOME/paddle_adagc``. Without a compiler, or with
``PADDLE_ADAGC_NATIVE=0``, the clip uses Paddle's operators.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("host.cpp")
FLAGS = (
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-shared",
    "-fPIC",
)


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled loops; None if switched off or impossible."""
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return None
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        logger.info("no C++ compiler: the clip uses Paddle's operators")
        return None
    try:
        path = build(compiler, cache_dir())
        try:
            return _declared(ctypes.CDLL(str(path)))
        except (OSError, AttributeError):  # damaged: make it again, once
            path.unlink()
            path = build(compiler, cache_dir())
            return _declared(ctypes.CDLL(str(path)))
    except (OSError, AttributeError, subprocess.CalledProcessError) as error:
        logger.warning(
            "the compiled loops cannot be used (%s): the clip uses Paddle's "
            "operators",
            error,
        )
        return None


def build(compiler: str, cache_dir: Path) -> Path:
    """Compile the library unless it is in ``cache_dir``; gives its path.

    Raises:
        OSError: The folder cannot be written, the compiler cannot be run.
        subprocess.CalledProcessError: The compiler failed.
    """

    def make(output: Path) -> None:
        subprocess.run(
            [*shlex.split(compiler), *FLAGS, str(SOURCE), "-o", str(output)],
            check=True,
            capture_output=True,
        )

    return keep(cache_dir / f"host-{_fingerprint(compiler)}.so", make)


def keep(target: Path, make: Callable[[Path], None]) -> Path:
    """Make a file unless it is there.

    It appears whole or not at all, so that processes may make it at once.

    Args:
        target: Path of the file.
        make: Writes it to another path.

    Returns:
        ``target``.

    Raises:
        OSError: The folder cannot be written, or others than this user could
            have put code there.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_private(target.parent)
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        make(output)
        output.replace(target)
    return target


def _check_private(folder: Path) -> None:
    """Refuse a folder from which another user's code could be loaded."""
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(
            f"{folder} belongs to another user, or others can write to it: "
            f"chmod 700 {folder}, or set XDG_CACHE_HOME to a folder of yours"
        )


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.adagc_squared_norms.argtypes = [pointer, count, pointer]
    library.adagc_squared_norms.restype = None
    library.adagc_scale.argtypes = [pointer, count, *[pointer] * 3]
    library.adagc_scale.restype = None
    return library


def cache_dir() -> Path:
    """Where compiled code is kept."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(f"{error}: set XDG_CACHE_HOME") from error
    return Path(root) / "paddle_adagc"


def _fingerprint(compiler: str) -> str:
    """Hash the source, the flags, the compiler and the architecture."""
    header = SOURCE.with_name("numbers.h")
    parts = [
        SOURCE.read_text(),
        header.read_text(),
        *FLAGS,
        compiler,
        platform.machine(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
