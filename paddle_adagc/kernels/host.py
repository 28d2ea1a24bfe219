# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiled loops on a list of gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.kernels.build import load_library
from paddle_adagc.kernels.facts import CPU, current_memory


class HostTensors:
    """Dense tensors in host memory.

    Args:
        tensors: None stands for no tensor.
        facts: :data:`paddle_adagc.kernels.facts.FACTS` of each.
    """

    def __init__(
        self, tensors: Sequence[Tensor | None], facts: np.ndarray
    ) -> None:
        library = load_library()
        assert library is not None
        self._library = library
        self._held = tensors  # so that the addresses stay theirs
        self._facts = np.ascontiguousarray(facts)

    @staticmethod
    def is_available() -> bool:
        """Whether the loops are there, and results lie in host memory too.

        They do after ``paddle.set_device("cpu")``, the default without a
        device.
        """
        return current_memory() == CPU << 8 and load_library() is not None

    @staticmethod
    def can_take(facts: np.ndarray) -> np.ndarray:
        """Which tensors the loops are made for, bool ``[num_tensors]``."""
        return (facts["dtype"] >= 0) & (facts["device"] >> 8 == CPU)

    def squared_norms(self) -> Tensor:
        """float32 ``[num_tensors]``; 0 for None."""
        out = paddle.empty([len(self._facts)], dtype="float32")
        self._library.adagc_squared_norms(
            self._facts.ctypes.data, len(self._facts), out.data_ptr()
        )
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply each by its ``h``, unless that is 1; or set it to 0."""
        h = h.contiguous()
        changed = np.empty(len(self._facts), bool)
        self._library.adagc_scale(
            self._facts.ctypes.data,
            len(self._facts),
            h.data_ptr(),
            None if discard is None else discard.data_ptr(),
            changed.ctypes.data,
        )
        for tensor in itertools.compress(self._held, changed):
            assert tensor is not None
            tensor._bump_inplace_version()
