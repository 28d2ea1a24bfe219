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

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.kernels.build import load_library


class HostTensors:
    """Addresses of dense float32 tensors in host memory.

    Args:
        tensors: Each must outlive this object; None stands for no tensor.
    """

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        library = load_library()
        assert library is not None
        self._library = library
        count = len(tensors)
        self._addresses = np.fromiter(
            (0 if t is None else t.data_ptr() for t in tensors),
            np.uint64,
            count,
        )
        self._sizes = np.fromiter(
            (0 if t is None else t.get_tensor()._numel() for t in tensors),
            np.int64,
            count,
        )

    @staticmethod
    def can_take(tensors: Sequence[Tensor | None]) -> bool:
        """Whether the loops are there, and made for all of the tensors.

        What is made beside them, such as their norms, is to lie in host memory
        too: ``paddle.set_device("cpu")``, which is the default without a
        device.
        """
        if load_library() is None:
            return False
        if not paddle.framework._current_expected_place().is_cpu_place():
            return False
        on_host = not _has_devices()
        float32 = paddle.float32
        return all(
            tensor is None
            or (
                tensor.dtype is float32
                and not tensor.is_selected_rows()
                and tensor.is_contiguous()
                and (on_host or tensor.place.is_cpu_place())
            )
            for tensor in tensors
        )

    def squared_norms(self) -> Tensor:
        """float32 ``[num_tensors]``; 0 for None."""
        out = paddle.empty([len(self._sizes)], dtype="float32")
        self._library.adagc_squared_norms(
            self._addresses.ctypes.data,
            self._sizes.ctypes.data,
            len(self._sizes),
            out.data_ptr(),
        )
        return out

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply each by its ``h``, unless that is 1; or set it to 0."""
        h = h.contiguous()
        self._library.adagc_scale(
            self._addresses.ctypes.data,
            self._sizes.ctypes.data,
            len(self._sizes),
            h.data_ptr(),
            None if discard is None else discard.data_ptr(),
        )


def _has_devices() -> bool:
    """Whether a tensor of this Paddle can lie outside of host memory."""
    return bool(
        paddle.is_compiled_with_cuda()
        or paddle.is_compiled_with_xpu()
        or paddle.device.get_all_custom_device_type()
    )
