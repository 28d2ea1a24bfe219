# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles, loads and launches the kernels: NVRTC and CUDA's driver by ctypes.

Needs neither Paddle nor a CUDA toolkit: Paddle's GPU wheels bring NVRTC, and
the driver is the GPU's. A tensor is anything with a ``data_ptr()``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SOURCE = Path(__file__).with_name("multi_tensor.cu")

THREADS = 512
CHUNK = 16384  # values that a block takes
CHUNKS_OF_BLOCK = 16  # at most, when scaling
_FULL_GRID = 2048  # blocks of a busy GPU; before that, each has one chunk
ADDRESSES = 480  # of a launch: 3,840 bytes of the 4,096 that every CUDA has
DEFINES = (
    f"-DADAGC_THREADS={THREADS}",
    f"-DADAGC_CHUNK={CHUNK}",
    f"-DADAGC_ADDRESSES={ADDRESSES}",
    f"-DADAGC_CHUNKS_OF_BLOCK={CHUNKS_OF_BLOCK}",
)
OPTIONS = (
    "--std=c++17",
    "--fmad=false",  # rounded as in rule.py
    "--ptxas-options=-v",
    *DEFINES,
)
_WARP = 32


class CudaError(RuntimeError):
    """A call of the driver or of NVRTC failed."""


def load_nvrtc(preferred_major: str = "") -> ctypes.CDLL:
    """Find NVRTC: in the process, on the library path, in wheels.

    ``preferred_major`` is the CUDA version of the framework, such as ``"12"``.
    """
    spec = importlib.util.find_spec("nvidia")
    wheels = (spec and spec.submodule_search_locations) or ()
    names: list[str] = []
    for version in sorted(
        ("13", "12", "11.2"), key=lambda v: v.split(".")[0] != preferred_major
    ):
        names.append(f"libnvrtc.so.{version}")
        for folder in wheels:
            names += map(str, sorted(Path(folder).glob(f"*/lib/{names[-1]}")))
    for name in [*names, "libnvrtc.so"]:
        try:
            return load_wheel(Path(name))
        except OSError:
            continue
    raise OSError(f"NVRTC was not found, looked for {', '.join(names)}")


def load_wheel(nvrtc: Path) -> ctypes.CDLL:
    """Load a library, its builtins first: CUDA 13's does not find them."""
    pattern = "libnvrtc-builtins.so.*"
    for path in sorted(nvrtc.parent.glob(pattern)) if nvrtc.is_file() else ():
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(nvrtc))


def nvrtc_version(nvrtc: Any) -> tuple[int, int]:
    """Major and minor version of CUDA."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _ask(nvrtc, "Version", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def pick_target(nvrtc: Any, capability: int) -> str:
    """Return what to compile for: the GPU, or PTX for an older NVRTC.

    ``capability`` is the compute capability, 10 * major + minor.
    """
    count = ctypes.c_int()
    _ask(nvrtc, "GetNumSupportedArchs", ctypes.byref(count))
    known = (ctypes.c_int * count.value)()
    _ask(nvrtc, "GetSupportedArchs", known)
    if capability in known:
        return f"sm_{capability}"
    older = [arch for arch in known if arch < capability]
    if not older:
        raise CudaError(
            f"this NVRTC compiles for sm_{min(known)} and newer, the GPU "
            f"is sm_{capability}"
        )
    return f"compute_{max(older)}"


def compile_source(nvrtc: Any, source: str, target: str) -> tuple[bytes, str]:
    """Compile to cubin or PTX; gives the log, with registers, too."""
    program, text = ctypes.c_void_p(), source.encode()
    named = ctypes.byref(program), text, b"multi_tensor.cu"
    _ask(nvrtc, "CreateProgram", *named, 0, None, None)  # no headers
    options = (f"--gpu-architecture={target}", *OPTIONS)
    texts = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    try:
        code = nvrtc.nvrtcCompileProgram(program, len(options), texts)
        log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode()
        if code:
            raise CudaError(f"NVRTC cannot compile for {target}: {log}")
        kind = "CUBIN" if target.startswith("sm_") else "PTX"
        return _read(nvrtc, program, kind), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _ask(nvrtc, f"Get{what}Size", program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    _ask(nvrtc, f"Get{what}", program, text)
    return text.raw


def _ask(nvrtc: Any, name: str, *arguments: Any) -> None:
    if code := getattr(nvrtc, f"nvrtc{name}")(*arguments):
        raise CudaError(f"NVRTC returned error {code}")


class Rule(ctypes.Structure):
    """Numbers of the adaptive rule, as in ``multi_tensor.cu``."""

    _fields_ = [
        (name, ctypes.c_float)
        for name in ("lambda_rel", "one_minus_beta", "h_of_nonfinite")
    ]


class AdaptiveStep(NamedTuple):
    """Result of the rule, each ``[num_tensors]``, float32 unless said."""

    norm: Any
    h: Any
    gamma: Any
    discard: Any  # bool: the gradient becomes 0; None: h_of_nonfinite is not 0
    num_nonfinite: Any  # int32


class Kernels:
    """The kernels on a device, in its primary context, as Paddle.

    Nothing can be launched before :meth:`load`.

    Args:
        cuda: The loaded CUDA driver.
        device: Index of the GPU.
        stream: Gives the handle of a device's current stream.
        empty: Makes a vector on the device, given its length and dtype.
    """

    def __init__(
        self,
        cuda: Any,
        device: int,
        stream: Callable[[int], int],
        empty: Callable[[int, str], Any],
    ) -> None:
        self._cuda, self.device = cuda, device
        self._stream, self.empty = stream, empty
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._module = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self._device), device)

    def call(self, name: str, *arguments: Any, what: str = "") -> None:
        """Call the driver; ``what`` stands in the error, else its name."""
        if code := getattr(self._cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            error = (text.value or b"unknown").decode()
            raise CudaError(
                f"{what or name} returned {error} ({code}); the driver also "
                "reports here what an earlier kernel of the process did wrong"
            )

    @property
    def capability(self) -> int:
        """Compute capability, 10 * major + minor."""
        found, number = [], ctypes.c_int()
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
            query = ctypes.byref(number), attribute, self._device
            self.call("cuDeviceGetAttribute", *query)
            found.append(number.value)
        return 10 * found[0] + found[1]

    def load(self, image: bytes) -> None:
        """Load a cubin or PTX into the device's context."""
        retained = ctypes.byref(self._context), self._device
        self.call("cuDevicePrimaryCtxRetain", *retained)
        self.use_context()
        self.call("cuModuleLoadData", ctypes.byref(self._module), image)

    def use_context(self) -> None:
        """Make the device's context this thread's, if another one is."""
        current = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value != self._context.value:
            self.call("cuCtxSetCurrent", self._context)

    def launch(self, name: str, grid: int, *arguments: Any) -> None:
        """Start a kernel on tensors, addresses (None: null), and numbers."""
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            named = ctypes.byref(function), self._module, name.encode()
            self.call("cuModuleGetFunction", *named, what=name)
            self._functions[name] = function
        values = [*map(_argument, arguments)]
        pointers = (ctypes.c_void_p * len(values))(
            *map(ctypes.addressof, values)
        )
        self.call(
            "cuLaunchKernel",
            function,
            *(grid, 1, 1, THREADS, 1, 1),
            *(0, self.stream(), pointers, None),
            what=f"launch of {name}",
        )

    def stream(self) -> ctypes.c_void_p:
        """Handle of the current stream."""
        return ctypes.c_void_p(self._stream(self.device))

    def adaptive_step(
        self, rule: Rule, squared_norm: Any, gamma: Any, num_nonfinite: Any
    ) -> AdaptiveStep:
        """Start the fused rule on vectors as of an :class:`AdaptiveStep`."""
        (count,) = gamma.shape
        norm, h, new_gamma = (self.empty(count, "float32") for _ in range(3))
        discard = None if rule.h_of_nonfinite else self.empty(count, "bool")
        new_count = self.empty(count, "int32")
        given = squared_norm, ctypes.c_int(count), rule, gamma
        vectors = norm, h, new_gamma, discard, num_nonfinite, new_count
        self.launch("adaptive_step", -(-count // THREADS), *given, *vectors)
        return AdaptiveStep(norm, h, new_gamma, discard, new_count)


def _argument(given: Any) -> Any:
    if hasattr(given, "data_ptr"):
        given = given.data_ptr()
    is_address = given is None or isinstance(given, int)
    return ctypes.c_void_p(given) if is_address else given


class _Addresses(ctypes.Structure):
    _fields_ = [("values", ctypes.c_uint64 * ADDRESSES)]


class Launcher:
    """Starts the kernels for a list of segments, in the current stream.

    That is the same one as long as the launcher lives.
    Tables of how segments are cut into chunks are copied to the device once.

    Args:
        kernels: :class:`Kernels` of the device.
        dtypes: Name of each segment's dtype.
        sizes: Number of values of each, 0 for none.
        runs: :data:`paddle_adagc.kernels.host.RUNS` of each, and
            ``num_entries`` the length of the vectors. None: each in one piece,
            with its own entry.
    """

    def __init__(
        self,
        kernels: Any,
        dtypes: Sequence[str] | np.ndarray,
        sizes: np.ndarray,
        runs: np.ndarray | None = None,
        num_entries: int = 0,
    ) -> None:
        self._kernels = kernels
        self._num_entries = len(sizes) if runs is None else num_entries
        entries, run, stride = np.arange(len(sizes)), sizes, sizes
        if runs is not None:
            entries, stride = runs["entry"], runs["stride"]
            run = np.where(runs["run"] < 0, sizes, runs["run"])
        num_chunks, names = -(-sizes // CHUNK), np.array(dtypes, str)
        segment = np.argsort(names, kind="stable")
        counts = num_chunks[segment]
        owner = np.repeat(segment, counts)
        index = np.arange(len(owner))
        index -= np.repeat(np.cumsum(counts) - counts, counts)
        chunks = np.stack([owner, index, entries[owner], 0 * owner], 1)
        spans = np.zeros([self._num_entries, 2], np.int32)
        # An entry's chunks are neighbours, as its segments are.
        found, first, count = _neighbours(entries[owner])
        spans[found] = np.stack([first, first + count], 1)
        # Of each dtype its name, first chunk and number of chunks.
        of_dtypes = (column.tolist() for column in _neighbours(names[owner]))
        self._kinds = [*zip(*of_dtypes, strict=True)]
        tables = [np.stack([sizes, run, stride], 1).astype(np.int64)]
        tables += [chunks.astype(np.int32), spans]
        lengths = [*(table.nbytes for table in tables), 8 * len(sizes)]
        self._memory = kernels.empty(sum(lengths) + 4 * len(owner), "uint8")
        (
            self._segments,
            self._chunks,
            self._spans,
            self._addresses,
            self._partial,
        ) = itertools.accumulate(lengths, initial=self._memory.data_ptr())
        # Kept, as the copy in the stream's order may read it later.
        self._content = b"".join(table.tobytes() for table in tables)
        kernels.call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(self._segments),
            self._content,
            ctypes.c_size_t(len(self._content)),
            kernels.stream(),
        )

    def store_addresses(self, addresses: np.ndarray) -> None:
        """Tell the device where the tensors are, uint64 ``[num_segments]``."""
        for start in range(0, len(addresses), ADDRESSES):
            part = addresses[start : start + ADDRESSES]
            argument = _Addresses()
            ctypes.memmove(argument.values, part.tobytes(), part.nbytes)
            place = ctypes.c_int(start), ctypes.c_int(len(part))
            given = (self._addresses, *place, argument)
            self._kernels.launch("store_addresses", 1, *given)

    def squared_norms(self, out: Any) -> None:
        """Write to ``out``, float32 ``[num_entries]``."""
        for dtype, first, count in self._kinds:
            partial = self._partial + 4 * first
            self._launch(f"partial_norm_{dtype}", count, first, partial)
        self._kernels.launch(
            "finish_norms",
            -(-self._num_entries * _WARP // THREADS),
            self._spans,
            self._partial,
            ctypes.c_int(self._num_entries),
            out,
        )

    def scale(self, h: Any, discard: Any) -> None:
        """Scale by ``h``, float32; zero where ``discard``, bool or None."""
        for dtype, first, count in self._kinds:
            per_block = min(max(count // _FULL_GRID, 1), CHUNKS_OF_BLOCK)
            given = first, h, discard, ctypes.c_int(count)
            self._launch(f"scale_{dtype}", -(-count // per_block), *given)

    def _launch(self, name: str, grid: int, first: int, *given: Any) -> None:
        """Start a kernel on the chunks from ``first`` on."""
        tables = self._addresses, self._segments, self._chunks + 16 * first
        self._kernels.launch(name, grid, *tables, *given)


def _neighbours(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each value, the place of its first, and how often it is there."""
    return np.unique(values, return_index=True, return_counts=True)
