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

from collections.abc import Iterable

import numpy as np
from paddle import Tensor

from paddle_adagc.kernels.cuda import DeviceTensors
from paddle_adagc.kernels.host import (
    NO_TENSOR,
    HostTensors,
    Segments,
    TensorList,
    describe,
)
from paddle_adagc.kernels.operators import OperatorTensors

BACKENDS: tuple[type[TensorList], ...] = (
    HostTensors,
    DeviceTensors,
    OperatorTensors,
)
"""In the order in which they are asked."""


def split(
    tensors: Iterable[Tensor | None],
    segments: Segments | None = None,
    descriptors: np.ndarray | None = None,
) -> list[TensorList]:
    """Give each tensor to the first backend that can take it.

    ``descriptors`` are those of the tensors, if they were read already; None
    among ``tensors`` stands for no tensor. Gives a list per backend in use, as
    long as ``tensors``, with gaps where another backend has the tensor.
    """
    rest = list(tensors)
    if descriptors is None:
        descriptors = describe(rest)
    is_left = descriptors["device"] != 0
    parts: list[TensorList] = []
    for backend in BACKENDS:
        if not is_left.any():
            break
        taken = is_left & backend.can_take(descriptors)
        if taken.all():
            return [backend(rest, descriptors, segments)]
        if taken.any():
            pairs = zip(rest, taken, strict=True)
            mine = [tensor if is_mine else None for tensor, is_mine in pairs]
            known = np.where(taken, descriptors, NO_TENSOR)
            parts.append(backend(mine, known, segments))
            is_left &= ~taken
    return parts
