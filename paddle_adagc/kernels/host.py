# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loops of ``host.cpp``: compiled when they are first needed, and called.

Paddle's operators cost some microseconds per tensor, which is most of a clip
step for models with thousands of tensors. The compiled loops take the whole
list at once. They need ``g++`` or ``$CXX``, once: the library is kept in
``$XDG_CACHE_HOME/paddle_adagc``.
"""

from __future__ import annotations

import abc
import ctypes
import dataclasses
import functools
import hashlib
import itertools
import logging
import math
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.files import temporary_path

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("host.cpp")
FLAGS = (
    *("-O3", "-fno-fast-math", "-fno-unsafe-math-optimizations"),
    *("-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC"),
)
"""After those of $CXX: -ffast-math there would change the process' floats."""


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled loops; None if switched off or impossible."""
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    try:
        library = load_code(build(os.environ.get("CXX") or "g++"))
        norms, scale = library.adagc_squared_norms, library.adagc_scale
    except (AttributeError, OSError, ValueError, CalledProcessError) as error:
        said = getattr(error, "stderr", None) or b""
        reason = f"{error} {said.decode(errors='replace')[-500:]}".strip()
        logger.warning("no compiled loops for CPUs, which need g++: %s", reason)
        _FAILED.append(reason)
        return None
    norms.restype = scale.restype = None
    norms.argtypes = [pointer, count, pointer, pointer, count]
    scale.argtypes = [pointer, count, *[pointer] * 4]
    return library


_FAILED: list[str] = []
"""Why the loops could not be loaded."""


def why_not() -> str:
    """Why the loops are not used; empty if they are."""
    if load_library() is not None:
        return ""
    return _FAILED[-1] if _FAILED else "PADDLE_ADAGC_NATIVE=0"


def build(compiler: str) -> bytes:
    """Compile the library unless it is in the cache; return its content."""
    files = (SOURCE, SOURCE.with_name("numbers.h"))
    parts = [file.read_text() for file in files]

    def make() -> bytes:
        with tempfile.TemporaryDirectory() as scratch:
            output = Path(scratch) / "host.so"
            subprocess.run(
                [*shlex.split(compiler), *FLAGS, SOURCE, "-o", output],
                check=True,
                capture_output=True,
            )
            return output.read_bytes()

    parts += [*FLAGS, compiler, platform.machine()]
    return keep_or_make("host", parts, make)


def keep_or_make(
    kind: str, parts: Sequence[str], make: Callable[[], bytes]
) -> bytes:
    """Return compiled code from the cache, or made anew if there is none."""
    make = functools.cache(make)  # if only the cache fails
    try:
        return keep(kind, parts, make)
    except OSError as error:
        logger.info("compiles without a cache: %s", error)
        return make()


def keep(kind: str, parts: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """Return compiled code from the cache; make it if it is not there.

    ``parts`` are all that it depends on: sources, options, versions.
    A SHA-256 follows the code in its file; damaged code is made again. The
    folder is opened once and used by its descriptor, so that nobody can put
    another one in its place after the check.

    Raises:
        OSError: The folder cannot be used, or others than this user could
            have put code there.
    """
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise OSError(f"{error}: set XDG_CACHE_HOME") from error
    name = f"{kind}-{hashlib.sha256(repr(parts).encode()).hexdigest()}"
    path = Path(root) / "paddle_adagc"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(path, os.O_DIRECTORY)
    try:
        if not _is_private(folder):
            raise PermissionError(
                f"{path} belongs to another user, or others can write to it: "
                f"chmod 700 {path}, or set XDG_CACHE_HOME to a folder of yours"
            )
        code = _read_code(name, folder)
        if code is None:
            code = make()
            with temporary_path(f"{_PROCESS}/{folder}/{name}") as output:
                output.touch(0o600)
                output.write_bytes(code + hashlib.sha256(code).digest())
        return code
    finally:
        os.close(folder)


_PROCESS = "/proc/self/fd"
"""Paths of open files and folders, wherever their names lead by now."""


def _read_code(name: str, folder: int) -> bytes | None:
    """Read a file of :func:`keep`; None: missing, damaged or another user's."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        content = file.read() if _is_private(descriptor) else b""
    code, checksum = content[:-32], content[-32:]
    return code if checksum == hashlib.sha256(code).digest() else None


def _is_private(descriptor: int) -> bool:
    """Whether this user alone can have written to an open file or folder."""
    found = os.fstat(descriptor)
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def load_code(code: bytes) -> ctypes.CDLL:
    """Load a checked library from memory: its file may change from now on.

    Raises:
        AttributeError: Python has no ``os.memfd_create`` (not on Linux).
        OSError: The code is no library, or ``/proc`` is missing.
    """
    descriptor = os.memfd_create("paddle_adagc")  # open as long as the process
    with open(descriptor, "wb", closefd=False) as file:
        file.write(code)
    return ctypes.CDLL(f"{_PROCESS}/{descriptor}")


DTYPES = (paddle.float32, paddle.float64, paddle.bfloat16, paddle.float16)
"""In the order of their codes; as in ``host.cpp``."""

CPU, CUDA = 1, 2  # DLPack's device types
DESCRIPTOR = np.dtype(
    [(name, np.int64) for name in ("address", "size", "dtype", "device")]
)
"""``address`` and ``size`` (number of values) are 0 where there is no tensor.
``dtype`` is an index of :data:`DTYPES`; -1 for any other dtype, for a tensor
that is not contiguous, and for none. ``device``: DLPack's type << 8 | index, 0
for no tensor, -1 for a device that is neither."""

NO_TENSOR = np.array((0, 0, -1, 0), DESCRIPTOR)
"""Descriptors of no tensor."""

RUNS = np.dtype(
    [(name, np.int64) for name in ("entry", "tensor", "run", "stride")]
)
"""How a segment lies in its tensor: ``run`` values lie together, and each run
begins ``stride`` values after the one before. As in ``host.cpp``."""

_ITEM_SIZES = np.array([4, 8, 2, 2, 0])  # by dtype; the last: none


@dataclasses.dataclass(frozen=True, eq=False)
class Segments:
    """The parts of a list of tensors that have a norm each.

    Segments with the same entry are neighbours; their squared norms are added
    up. The arrays are ``[num_segments]``.
    """

    start: np.ndarray  # int64: first value, in the tensor's memory
    size: np.ndarray  # int64: number of values; -1: all, in one run
    runs: np.ndarray  # RUNS
    num_entries: int  # length of the vectors of norms and of factors

    def describe(self, tensors: np.ndarray) -> np.ndarray:
        """Descriptors of the segments, from those of their tensors."""
        found = tensors[self.runs["tensor"]]
        is_tensor = found["size"] > 0
        found["address"] += self.start * _ITEM_SIZES[found["dtype"]] * is_tensor
        part = np.where(self.size < 0, found["size"], self.size)
        found["size"] = part * is_tensor
        return found


def describe(tensors: Sequence[Tensor | None]) -> np.ndarray:
    """Read the :data:`DESCRIPTOR` of each; None stands for no tensor."""
    descriptors = np.full(len(tensors), NO_TENSOR)
    for i, tensor in enumerate(tensors):
        if tensor is None:
            continue
        place, device = tensor.place, -1
        if place.is_cpu_place():
            device = CPU << 8
        elif place.is_gpu_place():
            device = CUDA << 8 | place.gpu_device_id()
        is_known = tensor.dtype in DTYPES and tensor.is_contiguous()
        descriptors[i] = (
            tensor.data_ptr(),
            math.prod(tensor.shape),
            DTYPES.index(tensor.dtype) if is_known else -1,
            device,
        )
    return descriptors


class TensorList(abc.ABC):
    """A list of tensors, with gaps, or of their segments, for one backend.

    Each segment has an entry in the vectors of norms and factors; without
    segments each tensor has one.
    """

    is_marked = False
    """Paddle knows already that the tensors on a GPU are written to."""

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        descriptors: np.ndarray,
        segments: Segments | None = None,
    ) -> None:
        self.tensors = tensors  # so that they live as long as their addresses
        self.segments = segments
        self.num_entries = len(tensors)
        if segments is not None:
            descriptors = segments.describe(descriptors)
            self.num_entries = segments.num_entries
        self.descriptors = found = np.ascontiguousarray(descriptors)
        runs = segments and segments.runs.ctypes.data
        self.addresses = found.ctypes.data, len(found), runs
        """What the C++ loops take of the list: descriptors, count, runs."""

    @staticmethod
    @abc.abstractmethod
    def can_take(descriptors: np.ndarray) -> np.ndarray:
        """Which tensors it can process now, bool ``[num_tensors]``."""

    @abc.abstractmethod
    def squared_norms(self) -> Tensor:
        """float32 ``[num_entries]``; 0 at a gap."""

    @abc.abstractmethod
    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply in place by ``h``, or set to 0 where ``discard``."""


class HostTensors(TensorList):
    """Dense tensors in host memory."""

    @staticmethod
    def can_take(descriptors: np.ndarray) -> np.ndarray:
        """Dense tensors in host memory, where the C++ loops were compiled."""
        # On another device results would not lie in host memory.
        is_usable = paddle.device.get_device() == "cpu" and load_library()
        is_here = descriptors["device"] >> 8 == CPU
        return (descriptors["dtype"] >= 0) & is_here & bool(is_usable)

    def squared_norms(self) -> Tensor:
        """float32 ``[num_entries]``, by the C++ loops; 0 at a gap."""
        out = paddle.empty([self.num_entries], dtype="float32")
        library: Any = load_library()
        entries = out.data_ptr(), self.num_entries
        library.adagc_squared_norms(*self.addresses, *entries)
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply by ``h``, or set to 0 where ``discard``; skip ``h`` of 1."""
        h = h.contiguous()
        changed = np.zeros(len(self.tensors), bool)
        flags = None if discard is None else discard.data_ptr()
        library: Any = load_library()
        entries = h.data_ptr(), flags, changed.ctypes.data
        library.adagc_scale(*self.addresses, *entries)
        for tensor in itertools.compress(self.tensors, changed):
            tensor._bump_inplace_version()  # type: ignore[union-attr]
