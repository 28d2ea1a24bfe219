# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's two passes over the gradients, by the fastest backend for each.

===============  ===========================================================
``host``         C++ loops for tensors in host memory
``cuda``         kernels for tensors on an NVIDIA GPU; ran there on tensors of
                 PyTorch, not of Paddle so far (docs/gpu.md)
``operators``    Paddle's operators, for everything else
===============  ===========================================================

``PADDLE_ADAGC_NATIVE=0`` leaves only the operators.
"""

from __future__ import annotations

import paddle

from paddle_adagc.kernels import cuda, host
from paddle_adagc.kernels.cuda import DeviceTensors
from paddle_adagc.kernels.host import HostTensors, TensorList
from paddle_adagc.kernels.operators import OperatorTensors

BACKENDS: tuple[type[TensorList], ...] = (
    HostTensors,
    DeviceTensors,
    OperatorTensors,
)
"""In the order in which they are asked."""


def why_not() -> str:
    """Why new tensors get no kernels; empty if they do, or if none exist."""
    device = cuda.current_device()
    if device is not None:
        return cuda.why_not(device)
    return host.why_not() if paddle.device.get_device() == "cpu" else ""
