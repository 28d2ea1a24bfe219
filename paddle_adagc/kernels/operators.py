# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paddle's operators on a list of gradients: any device, any memory layout.

On a CPU the host reads ``h`` for free, and only tensors with ``h != 1`` are
scaled. Reading it from a device would make the host wait: there every tensor
is scaled. Sixteen-bit values go through float32 because Paddle's operators
would round the sum and ``h`` itself. docs/gpu.md counts what this costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.kernels.host import DTYPES, Segments, TensorList

_STRIDED = "FLAGS_use_stride_kernel"


class OperatorTensors(TensorList):
    """Tensors of any kind but SelectedRows, of one of the floating dtypes."""

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        descriptors: np.ndarray,
        segments: Segments | None = None,
    ) -> None:
        for tensor in tensors:
            if tensor is not None and tensor.dtype not in DTYPES:
                raise TypeError(
                    f"{tensor.name} is {tensor.dtype}: a gradient must be "
                    f"one of {', '.join(map(str, DTYPES))}"
                )
        super().__init__(tensors, descriptors, segments)
        self._copies: dict[int, Tensor] = {}
        self._views = tensors
        if segments is not None:
            self._views = self._view(segments)
            self._entries = paddle.to_tensor(segments.runs["entry"])
            self._members = paddle.to_tensor(_members(segments))

    def _view(self, segments: Segments) -> list[Tensor | None]:
        """Views of the segments; of a copy where a tensor is strided."""
        if not paddle.get_flags(_STRIDED)[_STRIDED]:
            raise RuntimeError(
                f"units need {_STRIDED}=1 where the compiled loops are not used"
            )
        views: list[Tensor | None] = []
        for start, size, (_, index, run, stride) in zip(
            segments.start.tolist(),
            segments.size.tolist(),
            segments.runs.tolist(),
            strict=True,
        ):
            tensor = self.tensors[index]
            if tensor is None or size < 0:
                views.append(tensor)
                continue
            if not tensor.is_contiguous():
                if index not in self._copies:
                    self._copies[index] = _C_ops.assign(tensor)
                tensor = self._copies[index]
            # In the memory that a tensor may be a view into.
            offset = tensor.offset + start * tensor.element_size()
            shape = [size // max(run, 1), run]
            views.append(_C_ops.as_strided(tensor, shape, [stride, 1], offset))
        return views

    @staticmethod
    def can_take(descriptors: np.ndarray) -> np.ndarray:
        """Every tensor."""
        return np.ones(len(descriptors), bool)

    def squared_norms(self) -> Tensor:
        """float32 ``[num_entries]``; 0 at a gap."""
        zero = paddle.zeros([1], "float32")
        norms = [zero if t is None else _squared_norm(t) for t in self._views]
        if self.segments is None:
            return _C_ops.concat(norms, 0)
        return _C_ops.concat([*norms, zero], 0)[self._members].sum(1)

    def scale_(self, h: Tensor, discard: Tensor | None) -> None:
        """Multiply in place by ``h``, or set to 0 where ``discard``."""
        self._change(_scale_, h, 1)
        if discard is not None:
            self._change(_zero_where_, discard, 0)
        for index, copy in self._copies.items():
            _C_ops.assign_out_(copy, self.tensors[index])

    def _change(
        self, change_: Callable[[Tensor, Tensor], None], by: Tensor, idle: int
    ) -> None:
        """Change the tensors, but those known to have ``idle`` in ``by``."""
        if self.segments is not None:
            by = paddle.gather(by, self._entries)
        count = len(self._views)
        is_changed = np.ones(count, bool)
        if is_in_host_memory(by):
            is_changed = by.numpy() != idle
        parts = _C_ops.split_with_num(by, count, 0)
        for view, part, is_ in zip(self._views, parts, is_changed, strict=True):
            if is_ and view is not None and 0 not in view.shape:
                change_(view, part)


def _members(segments: Segments) -> np.ndarray:
    """Segments of each entry, int64; the number of all stands for none."""
    entries = segments.runs["entry"]
    first = np.searchsorted(entries, entries)
    place = np.arange(len(entries)) - first  # among those of its entry
    members = np.full(
        [segments.num_entries, place.max(initial=0) + 1], len(entries)
    )
    members[entries, place] = np.arange(len(entries))
    return members


def is_in_host_memory(tensor: Tensor) -> bool:
    """Whether the host can read the tensor without waiting for a device."""
    return bool(tensor.place.is_cpu_place())


def dense_float(values: Tensor) -> Tensor:
    """Return the values in float32 or float64, one after the other in memory.

    That is a copy of 16-bit values, and of a strided tensor, which not every
    operator takes: a weight used as ``matmul(x, w.T)`` has such a gradient.
    """
    if values.dtype not in (paddle.float32, paddle.float64):
        values = values.astype("float32")
    # Tensor.contiguous() would move the tensor itself out of its memory.
    return values if values.is_contiguous() else _C_ops.assign(values)


def _squared_norm(tensor: Tensor) -> Tensor:
    norm = _C_ops.squared_l2_norm(dense_float(tensor))
    return norm if norm.dtype == paddle.float32 else norm.astype("float32")


def _scale_(tensor: Tensor, factor: Tensor) -> None:
    wide = dense_float(tensor)
    if wide.dtype != factor.dtype:
        factor = factor.astype(wide.dtype)
    _C_ops.multiply_(wide, factor if wide.ndim else factor.reshape([]))
    if wide is tensor:
        return
    if not tensor.is_contiguous():
        _C_ops.assign_out_(wide.astype(tensor.dtype), tensor)
        return
    cast: Any = _C_ops.cast  # its stub lacks "out"
    narrow = cast(wide, tensor.dtype, out=tensor)
    if narrow.data_ptr() == tensor.data_ptr():
        tensor._bump_inplace_version()
    else:  # Paddle before 3.3: no "out"
        _C_ops.assign_out_(narrow, tensor)


def _zero_where_(tensor: Tensor, flag: Tensor) -> None:
    values = tensor
    if not tensor.is_contiguous():
        values = _C_ops.assign(tensor)
    zero = paddle.zeros([], tensor.dtype)
    operators: Any = _C_ops  # whose stub lacks the in-place form
    operators.masked_fill_(values, flag if values.ndim else flag[0], zero)
    if values is not tensor:
        _C_ops.assign_out_(values, tensor)
