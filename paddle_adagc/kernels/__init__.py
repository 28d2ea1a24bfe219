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
from typing import Protocol

import numpy as np
from paddle import Tensor

from paddle_adagc.kernels.cuda.tensors import DeviceTensors
from paddle_adagc.kernels.host import (
    NO_TENSOR,
    HostTensors,
    Segments,
    describe,
)
from paddle_adagc.kernels.operators import OperatorTensors


class TensorList(Protocol):
    """A backend's hold on a list of tensors, with gaps, or on their segments.

    Each segment has a slot in the vectors of norms and factors; without
    segments that of its tensor.
    """

    is_told: bool
    """Paddle knows already that those on a GPU are written to."""

    def __init__(
        self,
        tensors: list[Tensor | None],
        descriptors: np.ndarray,
        segments: Segments | None,
    ) -> None: ...

    @staticmethod
    def is_available() -> bool:
        """Whether this process can use the backend now."""

    @staticmethod
    def can_take(descriptors: np.ndarray) -> np.ndarray:
        """Which tensors the backend can work on, bool ``[num_tensors]``."""

    def squared_norms(self) -> Tensor:
        """Squared L2 norms, float32 ``[num_slots]``; 0 at a gap."""

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply in place by ``h``; set to 0 where ``discard``."""


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

    Args:
        tensors: None stands for no tensor.
        segments: Their parts; None: each tensor is one.
        descriptors: Of the tensors, if they were read already.

    Returns:
        A list per backend in use, as long as ``tensors``, with gaps where
        another backend has the tensor.
    """
    rest = list(tensors)
    if descriptors is None:
        descriptors = describe(rest)
        is_left = np.array([tensor is not None for tensor in rest], bool)
    else:
        is_left = descriptors["device"] != 0
    parts = []
    for backend in BACKENDS:
        if not is_left.any():
            break
        if not backend.is_available():
            continue
        taken = is_left & backend.can_take(descriptors)
        if taken.all():
            return [backend(rest, descriptors, segments)]
        if taken.any():
            mine = np.where(taken, descriptors, NO_TENSOR)
            parts.append(
                backend(
                    [
                        t if i else None
                        for t, i in zip(rest, taken, strict=True)
                    ],
                    mine,
                    segments,
                )
            )
            is_left &= ~taken
    return parts
