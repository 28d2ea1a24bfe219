# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The compiled loops on a list of gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.kernels.build import load_library

_CODES = {
    paddle.float32: 0,
    paddle.float64: 1,
    paddle.bfloat16: 2,
    paddle.float16: 3,
}
"""As in ``host.cpp``."""


class HostTensors:
    """Addresses of dense tensors in host memory.

    Args:
        tensors: None stands for no tensor.
    """

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        library = load_library()
        assert library is not None
        self._library = library
        self._held = tensors  # so that the addresses stay theirs
        self._tensors = np.array(
            [
                (0, 0, 0)
                if t is None
                else (t.data_ptr(), math.prod(t.shape), _CODES[t.dtype])
                for t in tensors
            ],
            np.int64,
        )

    @staticmethod
    def is_available() -> bool:
        """Whether the loops are there, and results lie in host memory too.

        They do after ``paddle.set_device("cpu")``, the default without a
        device.
        """
        place = paddle.framework._current_expected_place()
        return bool(place.is_cpu_place()) and load_library() is not None

    @staticmethod
    def can_take(tensor: Tensor) -> bool:
        """Whether the loops are made for a tensor like this."""
        return (
            tensor.dtype in _CODES
            and tensor.is_contiguous()
            and tensor.place.is_cpu_place()
        )

    def squared_norms(self) -> Tensor:
        """float32 ``[num_tensors]``; 0 for None."""
        out = paddle.empty([len(self._tensors)], dtype="float32")
        self._library.adagc_squared_norms(
            self._tensors.ctypes.data, len(self._tensors), out.data_ptr()
        )
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply each by its ``h``, unless that is 1; or set it to 0."""
        h = h.contiguous()
        self._library.adagc_scale(
            self._tensors.ctypes.data,
            len(self._tensors),
            h.data_ptr(),
            None if discard is None else discard.data_ptr(),
        )
