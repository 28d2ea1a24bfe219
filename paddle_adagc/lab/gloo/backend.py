# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Switch the CPU backend on, once, and only where it belongs."""

import os
import warnings

import paddle
from paddle import distributed as dist

from paddle_adagc.lab.gloo import (
    collectives,
    devices,
    operators,
    point_to_point,
    rendezvous,
    reshard,
)
from paddle_adagc.lab.gloo.patch import Patch

_PADDLE_SERIES = "3.3."
_PATCHES: tuple[Patch, ...] = (
    *rendezvous.PATCHES,
    *collectives.PATCHES,
    *point_to_point.PATCHES,
    *operators.PATCHES,
    *devices.PATCHES,
    *reshard.PATCHES,
)
_enabled = False


def enable() -> None:
    """Make ``paddle.distributed.fleet`` work on CPU over gloo.

    A backend for development and tests. Call it in every rank, before
    ``fleet.init`` or ``init_parallel_env``; calling it again does nothing.
    Sets ``PADDLE_DISTRI_BACKEND`` to ``gloo`` where it is not set.

    Covered: data, tensor, pipeline (1F1B, virtual stages), sequence, SEP,
    context and expert parallelism, sharding stage 1 V1 (with tensor fusion)
    and V2, ``main_grad``, and auto-parallel without the reduce-scatters that
    Paddle makes inside of its operators. Not covered: several meshes in one
    auto-parallel program, ``mp_async_allreduce``, the fused GEMM options,
    ``paddle.incubate``'s ``MoELayer`` (its routing operators have no
    CPU kernel), more than one machine. A collective fails where a rank keeps
    the others waiting for more than 30 s, which is gloo's timeout.

    Raises:
        RuntimeError: Paddle was built for an accelerator, or the process
            groups already exist.
    """
    global _enabled
    if _enabled:
        return
    _check_build()
    if dist.is_initialized():
        raise RuntimeError(
            "paddle.distributed is already initialized: call "
            "paddle_adagc.lab.gloo.enable() before fleet.init()"
        )
    os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
    for patch in _PATCHES:
        patch.apply()
    _enabled = True


def _check_build() -> None:
    """Refuse accelerator builds; warn of a Paddle that nobody has tried."""
    for device, compiled in (
        ("CUDA", paddle.is_compiled_with_cuda()),
        ("XPU", paddle.is_compiled_with_xpu()),
        ("ROCm", paddle.is_compiled_with_rocm()),
    ):
        if compiled:
            raise RuntimeError(
                f"this Paddle was built with {device}: "
                "paddle_adagc.lab.gloo is a backend for development "
                "and tests on CPU builds; here use fleet as it is"
            )
    if not paddle.__version__.startswith(_PADDLE_SERIES):
        warnings.warn(
            "paddle_adagc.lab.gloo was written for Paddle "
            f"{_PADDLE_SERIES}x, this is {paddle.__version__}: what it "
            "replaces may have moved",
            stacklevel=3,
        )
