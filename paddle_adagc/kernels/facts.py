# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the backends have to know of a list of tensors, read in one pass.

Python costs a microsecond for every question about a tensor, which for
thousands of tensors is more than the kernels take. The compiled library asks
through DLPack's exchange API instead.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.kernels.build import load_library

DTYPES = (paddle.float32, paddle.float64, paddle.bfloat16, paddle.float16)
"""In the order of their codes; as in ``host.cpp``."""

CPU, CUDA = 1, 2  # DLPack's device types
FACTS = np.dtype(
    [(name, np.int64) for name in ("address", "size", "dtype", "device")]
)
"""``address`` and ``size`` (number of values) are 0 where there is no tensor.
``dtype`` is an index of :data:`DTYPES`; -1 for any other dtype, for a tensor
that is not contiguous, and for none. ``device``: DLPack's type << 8 | index."""

NOTHING = np.array((0, 0, -1, 0), FACTS)
"""Facts of no tensor."""


def describe(tensors: Sequence[Tensor | None]) -> np.ndarray:
    """Read the facts.

    Args:
        tensors: Dense, not SelectedRows; None stands for no tensor.

    Returns:
        :data:`FACTS` ``[num_tensors]``.
    """
    facts = np.full(len(tensors), NOTHING)
    fast = _fast_reader()
    if fast is None or not fast(tensors, facts):
        for i, tensor in enumerate(tensors):
            if tensor is not None:
                facts[i] = _read(tensor)
    return facts


def current_memory() -> int:
    """Where new tensors lie, as facts name it; 0 if neither CPU nor CUDA."""
    kind, _, index = paddle.device.get_device().partition(":")
    if kind == "cpu":
        return CPU << 8
    if kind == "gpu" and not paddle.is_compiled_with_rocm():
        return CUDA << 8 | int(index)
    return 0


def _read(tensor: Tensor) -> tuple[int, int, int, int]:
    place = tensor.place
    device = 0
    if place.is_cpu_place():
        device = CPU << 8
    elif place.is_gpu_place():
        device = CUDA << 8 | place.gpu_device_id()
    is_known = tensor.dtype in DTYPES and tensor.is_contiguous()
    return (
        tensor.data_ptr(),
        math.prod(tensor.shape),
        DTYPES.index(tensor.dtype) if is_known else -1,
        device,
    )


@functools.cache
def _fast_reader() -> (
    Callable[[Sequence[Tensor | None], np.ndarray], bool] | None
):
    """Fill in facts by the compiled library; None if it cannot be had."""
    library = load_library()
    exchange = _exchange_function()
    if library is None or exchange is None:
        return None
    # Python's lock stays held: the function looks into Python's objects.
    describe_all = ctypes.PyDLL(library._name).adagc_describe
    describe_all.restype = ctypes.c_int64
    describe_all.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        *[ctypes.c_void_p] * 3,
    ]

    def read(tensors: Sequence[Tensor | None], facts: np.ndarray) -> bool:
        count = len(tensors)
        objects = np.fromiter(tensors, object, count)
        done = describe_all(
            objects.ctypes.data,
            count,
            id(None),
            exchange,
            facts.ctypes.data,
        )
        return bool(done == count)

    return read


def _exchange_function() -> int | None:
    """Address of DLPack 1's ``dltensor_from_py_object_no_sync``."""
    capsule = getattr(paddle.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = get_pointer(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(table).value
    return (
        ctypes.c_void_p.from_address(table + 40).value if major == 1 else None
    )
