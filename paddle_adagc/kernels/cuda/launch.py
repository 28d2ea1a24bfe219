# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiles, loads and launches the kernels: NVRTC and CUDA's driver by ctypes.

Needs neither Paddle nor a CUDA toolkit: Paddle's GPU wheels bring NVRTC, and
the driver is the GPU's. Addresses are numbers here.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
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
    "--fmad=false",  # the same bits as rule.py
    "--ptxas-options=-v",
    *DEFINES,
)
_WARP = 32
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


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


class Compiler:
    """The loaded NVRTC."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc = nvrtc

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of CUDA."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def target(self, capability: int) -> str:
        """Return what to compile for: the GPU, or PTX for an older NVRTC.

        ``capability`` is the compute capability, 10 * major + minor.
        """
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", known)
        if capability in known:
            return f"sm_{capability}"
        older = [arch for arch in known if arch < capability]
        if not older:
            raise CudaError(
                f"this NVRTC compiles for sm_{min(known)} and newer, the GPU "
                f"is sm_{capability}"
            )
        return f"compute_{max(older)}"

    def compile(self, source: str, target: str) -> tuple[bytes, str]:
        """Compile to cubin or PTX; gives the log, with registers, too."""
        program, text = ctypes.c_void_p(), source.encode()
        named = ctypes.byref(program), text, b"multi_tensor.cu"
        self._call("CreateProgram", *named, 0, None, None)  # no headers
        arguments = [f"--gpu-architecture={target}".encode()]
        arguments += [option.encode() for option in OPTIONS]
        held = (ctypes.c_char_p * len(arguments))(*arguments)
        try:
            code = self._nvrtc.nvrtcCompileProgram(
                program, len(arguments), held
            )
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode()
            if code:
                raise CudaError(f"NVRTC cannot compile for {target}: {log}")
            kind = "CUBIN" if target.startswith("sm_") else "PTX"
            return self._read(program, kind), log
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, text)
        return text.raw

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._nvrtc, f"nvrtc{name}")(*arguments):
            raise CudaError(f"NVRTC returned error {code}")


class Driver:
    """The loaded CUDA driver on a device, in its primary context, as Paddle."""

    def __init__(self, cuda: Any, device: int = 0) -> None:
        self._cuda = cuda
        self.call("cuInit", 0)
        self._device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self._device), device)

    def call(self, name: str, *arguments: Any, what: str = "") -> None:
        """Call a function; ``what`` stands in the error, else its name."""
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
        major, minor = ctypes.c_int(), ctypes.c_int()
        for number, attribute in ((major, _MAJOR), (minor, _MINOR)):
            held = ctypes.byref(number), attribute, self._device
            self.call("cuDeviceGetAttribute", *held)
        return 10 * major.value + minor.value

    def load(self, image: bytes) -> Module:
        """Load a cubin or PTX into the device's context."""
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        retained = ctypes.byref(context), self._device
        self.call("cuDevicePrimaryCtxRetain", *retained)
        self._context = context
        self.use_context()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return Module(self, module)

    def use_context(self) -> None:
        """Make the device's context this thread's, if another one is."""
        current = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value != self._context.value:
            self.call("cuCtxSetCurrent", self._context)


class Module:
    """Loaded kernels; made by :meth:`Driver.load`."""

    def __init__(self, driver: Driver, module: ctypes.c_void_p) -> None:
        self.driver, self._module = driver, module
        self._functions: dict[str, ctypes.c_void_p] = {}

    def launch(
        self, name: str, grid: int, stream: int, *arguments: Any
    ) -> None:
        """Start ``grid`` blocks of a kernel; its arguments are of ctypes."""
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            named = ctypes.byref(function), self._module, name.encode()
            self.driver.call("cuModuleGetFunction", *named, what=name)
            self._functions[name] = function
        pointers = (ctypes.c_void_p * len(arguments))(
            *map(ctypes.addressof, arguments)
        )
        self.driver.call(
            "cuLaunchKernel",
            function,
            *(grid, 1, 1),
            *(THREADS, 1, 1),
            *(0, ctypes.c_void_p(stream), pointers, None),
            what=f"launch of {name}",
        )

    def copy(self, target: int, source: bytes, stream: int) -> None:
        """Copy from pageable host memory, in the stream's order."""
        size, handle = ctypes.c_size_t(len(source)), ctypes.c_void_p(stream)
        address = ctypes.c_uint64(target)
        self.driver.call("cuMemcpyHtoDAsync_v2", address, source, size, handle)


class _Addresses(ctypes.Structure):
    _fields_ = [("values", ctypes.c_uint64 * ADDRESSES)]


class Run(NamedTuple):
    """The chunks of all segments of one dtype."""

    dtype: str
    first: int  # index of the first chunk
    num_chunks: int


class Tables:
    """How a list of segments is cut into chunks; depends on sizes and dtypes.

    ``constants`` are copied to the device once, into ``num_bytes`` of memory
    that hold them, the addresses and the partial sums; ``chunks``, ``spans``,
    ``addresses`` and ``partial`` say where each part begins.

    Args:
        dtypes: Name of each segment's dtype.
        sizes: Number of values of each, 0 for none.
        runs: :data:`paddle_adagc.kernels.host.RUNS` of each, and ``num_slots``
            the length of the vectors. None: each in one piece, in its own slot.
    """

    def __init__(
        self,
        dtypes: Sequence[str],
        sizes: np.ndarray,
        runs: np.ndarray | None = None,
        num_slots: int = 0,
    ) -> None:
        self.num_segments = len(sizes)
        self.num_slots = self.num_segments if runs is None else num_slots
        slots, run, stride = np.arange(len(sizes)), sizes, sizes
        if runs is not None:
            slots, stride = runs["slot"], runs["stride"]
            run = np.where(runs["run"] < 0, sizes, runs["run"])
        counts = -(-sizes // CHUNK)
        names = np.array(dtypes, str)
        self.runs: list[Run] = []
        order = [np.zeros(0, np.int64)]
        self.num_chunks = 0
        for dtype in np.unique(names[counts > 0]).tolist():
            members = np.flatnonzero((names == dtype) & (counts > 0))
            order.append(members)
            count = int(counts[members].sum())
            self.runs.append(Run(dtype, self.num_chunks, count))
            self.num_chunks += count
        segment = np.concatenate(order)
        stop = np.zeros(self.num_segments, np.int64)
        stop[segment] = np.cumsum(counts[segment])
        start = stop - counts
        owner = np.repeat(segment, counts[segment])
        index = np.arange(self.num_chunks) - start[owner]
        chunks = np.stack([owner, index, slots[owner], 0 * owner], 1)
        spans = np.zeros([self.num_slots, 2], np.int64)
        # Of a slot's segments, which are neighbours, first start and last stop.
        spans[slots[segment][::-1], 0] = start[segment][::-1]
        spans[slots[segment], 1] = stop[segment]
        segments = np.stack([sizes, run, stride], 1).astype(np.int64)
        self.constants = segments.tobytes()
        self.constants += chunks.astype(np.int32).tobytes()
        self.constants += spans.astype(np.int32).tobytes()
        self.chunks = 24 * self.num_segments
        self.spans = self.chunks + 16 * self.num_chunks
        self.addresses = len(self.constants)
        self.partial = self.addresses + 8 * self.num_segments
        self.num_bytes = self.partial + 4 * self.num_chunks

    @property
    def num_launches(self) -> int:
        """Of norms and scales together."""
        stores = -(-self.num_segments // ADDRESSES)
        return stores + 2 * len(self.runs) + 1


class Launcher:
    """Starts the kernels of :class:`Tables` in one stream.

    ``memory`` is the address of ``tables.num_bytes`` bytes on the device,
    ``stream`` the stream's handle.
    """

    def __init__(
        self, module: Any, tables: Tables, memory: int, stream: int
    ) -> None:
        self._tables, self._module = tables, module
        self._memory, self._stream = memory, stream
        module.copy(memory, tables.constants, stream)

    def store_addresses(self, addresses: np.ndarray) -> None:
        """Tell the device where the tensors are, uint64 ``[num_segments]``."""
        table = self._at(self._tables.addresses)
        for start in range(0, len(addresses), ADDRESSES):
            part = addresses[start : start + ADDRESSES]
            argument = _Addresses()
            ctypes.memmove(argument.values, part.tobytes(), part.nbytes)
            place = ctypes.c_int(start), ctypes.c_int(len(part))
            self._launch("store_addresses", 1, table, *place, argument)

    def squared_norms(self, out: int) -> None:
        """Write float32 ``[num_slots]`` to the address ``out``."""
        tables = self._tables
        for run in tables.runs:
            partial = self._at(tables.partial + 4 * run.first)
            name = f"partial_norm_{run.dtype}"
            self._launch(name, run.num_chunks, *self._chunks(run), partial)
        self._launch(
            "finish_norms",
            -(-tables.num_slots * _WARP // THREADS),
            self._at(tables.spans),
            self._at(tables.partial),
            ctypes.c_int(tables.num_slots),
            ctypes.c_void_p(out),
        )

    def scale(self, h: int, discard: int | None) -> None:
        """Scale by float32 at ``h``; zero where bool at ``discard``."""
        vectors = ctypes.c_void_p(h), ctypes.c_void_p(discard)
        for run in self._tables.runs:
            count = run.num_chunks
            per_block = min(max(count // _FULL_GRID, 1), CHUNKS_OF_BLOCK)
            given = (*self._chunks(run), *vectors, ctypes.c_int(count))
            self._launch(f"scale_{run.dtype}", -(-count // per_block), *given)

    def _chunks(self, run: Run) -> tuple[ctypes.c_void_p, ...]:
        tables = self._tables
        first = tables.chunks + 16 * run.first
        return tuple(map(self._at, (tables.addresses, 0, first)))

    def _at(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._memory + offset)

    def _launch(self, name: str, grid: int, *arguments: Any) -> None:
        self._module.launch(name, grid, self._stream, *arguments)


class Rule(ctypes.Structure):
    """Numbers of the adaptive rule, as in ``multi_tensor.cu``."""

    _fields_ = [
        (name, ctypes.c_float)
        for name in ("lambda_rel", "one_minus_beta", "h_of_nonfinite")
    ]


def launch_adaptive_step(
    module: Any,
    stream: int,
    num_tensors: int,
    rule: Rule,
    squared_norm: int,
    pointers: Sequence[int | None],
) -> None:
    """Start the fused rule on vectors ``[num_tensors]``.

    ``pointers`` are the addresses of gamma, norm, h, new gamma (all float32, as
    ``squared_norm``), lost (bool, may be None), count of non-finite norms
    before and after (int32). ``module`` and ``stream`` as for
    :class:`Launcher`.
    """
    grid = -(-num_tensors // THREADS)
    before = ctypes.c_void_p(squared_norm), ctypes.c_int(num_tensors), rule
    after = map(ctypes.c_void_p, pointers)
    module.launch("adaptive_step", grid, stream, *before, *after)
