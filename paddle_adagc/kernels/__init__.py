# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's two passes over the gradients, by the fastest backend for each.

===============  ===========================================================
``host``         C++ loops for tensors in host memory
``cuda``         kernels for tensors on an NVIDIA GPU; not run on a GPU so far
``operators``    Paddle's operators, for everything else
===============  ===========================================================

``PADDLE_ADAGC_NATIVE=0`` leaves only the operators.
"""

from __future__ import annotations

from paddle_adagc.kernels.cuda import DeviceTensors
from paddle_adagc.kernels.host import HostTensors, TensorList
from paddle_adagc.kernels.operators import OperatorTensors

BACKENDS: tuple[type[TensorList], ...] = (
    HostTensors,
    DeviceTensors,
    OperatorTensors,
)
"""In the order in which they are asked."""
