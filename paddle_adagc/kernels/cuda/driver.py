# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""NVRTC and the CUDA driver API through ctypes.

Needs neither Paddle nor a CUDA toolkit: Paddle's GPU wheels bring NVRTC, and
the driver is the GPU's. Works on any object with the driver's entry points.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
OPTIONS = (
    "--std=c++17",
    "--fmad=false",  # the same bits as rule.py
    "--ptxas-options=-v",
)


class CudaError(RuntimeError):
    """A call of the driver or of NVRTC failed."""


def load_nvrtc(preferred_major: str = "") -> ctypes.CDLL:
    """Find NVRTC: in the process, on the library path, in wheels, by nvcc.

    ``preferred_major`` is the CUDA version of the framework, such as ``"12"``.
    """
    majors = sorted(
        ("13", "12", "11.2"), key=lambda m: m.split(".")[0] != preferred_major
    )
    spec = importlib.util.find_spec("nvidia")
    wheels = (spec and spec.submodule_search_locations) or ()
    nvcc = shutil.which("nvcc")
    toolkit = None if nvcc is None else Path(nvcc).resolve().parent.parent
    names: list[str] = []
    for major in majors:
        file = f"libnvrtc.so.{major}"
        names.append(file)
        for folder in wheels:
            names += map(str, sorted(Path(folder).glob(f"*/lib/{file}")))
        if toolkit is not None:
            names.append(str(toolkit / "lib64" / file))
    for name in [*names, "libnvrtc.so"]:
        try:
            _load_builtins(Path(name))
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"NVRTC was not found, looked for {', '.join(names)}")


def _load_builtins(nvrtc: Path) -> None:
    """Open NVRTC's builtins first: the wheel of CUDA 13 does not find them."""
    pattern = "libnvrtc-builtins.so.*"
    for path in sorted(nvrtc.parent.glob(pattern)) if nvrtc.is_file() else ():
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


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

    def compile(
        self, source: str, target: str, options: Sequence[str]
    ) -> tuple[bytes, str]:
        """Compile CUDA C++ without includes.

        Returns:
            cubin or PTX, and the log with registers and spills.
        """
        program, text = ctypes.c_void_p(), source.encode()
        named = ctypes.byref(program), text, b"multi_tensor.cu"
        self._call("CreateProgram", *named, 0, None, None)  # no headers
        arguments = [f"--gpu-architecture={target}".encode()]
        arguments += [option.encode() for option in options]
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
    """The calls of the loaded CUDA driver that the kernels need."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self.call("cuInit", 0)

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

    def capability(self, device: int) -> int:
        """Compute capability of a device, 10 * major + minor."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        handle, read = self._handle(device), "cuDeviceGetAttribute"
        self.call(read, ctypes.byref(major), _MAJOR, handle)
        self.call(read, ctypes.byref(minor), _MINOR, handle)
        return 10 * major.value + minor.value

    def context(self, device: int) -> ctypes.c_void_p:
        """Return the device's primary context, which is Paddle's."""
        context, handle = ctypes.c_void_p(), self._handle(device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        return context

    def use_context(self, context: ctypes.c_void_p) -> None:
        """Make a context this thread's, if another one is."""
        current = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value != context.value:
            self.call("cuCtxSetCurrent", context)

    def load(self, image: bytes, context: ctypes.c_void_p) -> Module:
        """Load a cubin or PTX into a context, which becomes current."""
        self.use_context(context)
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return Module(self, module, context)

    def _handle(self, device: int) -> ctypes.c_int:
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        return handle


class Module:
    """Loaded kernels; made by :meth:`Driver.load`."""

    def __init__(
        self, driver: Driver, module: ctypes.c_void_p, context: ctypes.c_void_p
    ) -> None:
        self._driver, self._module, self._context = driver, module, context
        self._functions: dict[str, ctypes.c_void_p] = {}

    def make_current(self) -> None:
        """Launch into the module's device from now on, in this thread."""
        self._driver.use_context(self._context)

    def launch(
        self, name: str, grid: int, block: int, stream: int, *arguments: Any
    ) -> None:
        """Start ``grid`` blocks of ``block`` threads of a kernel.

        ``stream`` is the stream's handle; the arguments are ctypes values.
        """
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            named = ctypes.byref(function), self._module, name.encode()
            self._driver.call("cuModuleGetFunction", *named, what=name)
            self._functions[name] = function
        pointers = (ctypes.c_void_p * len(arguments))(
            *map(ctypes.addressof, arguments)
        )
        self._driver.call(
            "cuLaunchKernel",
            function,
            *(grid, 1, 1),
            *(block, 1, 1),
            *(0, ctypes.c_void_p(stream), pointers, None),
            what=f"launch of {name}",
        )

    def copy(self, target: int, source: bytes, stream: int) -> None:
        """Copy from pageable host memory, in the stream's order."""
        size, handle = ctypes.c_size_t(len(source)), ctypes.c_void_p(stream)
        address = ctypes.c_uint64(target)
        self._driver.call("cuMemcpyHtoDAsync_v2", address, source, size, handle)
