# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""TensorWiseGC: the paper's ablation of adaptivity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle
from paddle import Tensor

from paddle_adagc.checks import check_positive
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.gradients import NonFinite
from paddle_adagc.clips.stateful import State
from paddle_adagc.parallel.units import Declared


class ClipGradByTensorWiseGC(TensorScalingClip):
    r"""A fixed threshold per tensor, by its share of the model's values.

    With :math:`d_i` the number of values of tensor :math:`i` and :math:`D` that
    of all tensors that are clipped: :math:`h_i = \min(\lambda_i / \|g_i\|, 1)`,
    :math:`\lambda_i = \lambda_{abs} d_i / D`. Local but not adaptive: the
    variant that the paper's ablation ("Adaptivity Efficacy and Locality
    Granularity") compares AdaGC with.

    Thresholds count whole tensors, however a layout splits them. Bound to a
    model, :math:`D` is known from the start (one all-reduce of one number in
    the first step of a hybrid-parallel run, none later); after freezing or
    unfreezing layers call :meth:`bind` again. Unbound, it grows with the
    tensors that it has seen.

    Args:
        lambda_abs: :math:`\lambda_{abs}`, greater than 0.
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.
    """

    def __init__(
        self,
        lambda_abs: float = 1.0,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.lambda_abs = check_positive("lambda_abs", lambda_abs)
        self._thresholds = paddle.zeros([0], "float32")  # [num_tensors]
        self._shapes: dict[int, tuple[int, ...]] = {}  # of an unbound table

    def bind(
        self, model: paddle.nn.Layer, units: Declared | None = None
    ) -> None:
        """See :meth:`TensorScalingClip.bind`; counts the values anew."""
        super().bind(model, units)
        self._thresholds = paddle.zeros([0], "float32")

    def _slots(self, parameters: Sequence[Tensor]) -> list[int]:
        slots = super()._slots(parameters)
        for slot in slots if self._table.is_bound else ():
            tensor = self._table.layout[slot]
            if not tensor.takes_part:
                raise RuntimeError(
                    f"{tensor.key} was frozen or kept from being clipped when "
                    "bind() counted the model's values: call bind(model) again "
                    "after that has changed, on every rank"
                )
        for slot, parameter in zip(slots, parameters, strict=True):
            self._shapes.setdefault(slot, tuple(parameter.shape))
        return slots

    def _advance(
        self, step: int, norm: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if self._thresholds.shape[0] != len(self._table.keys):
            self._thresholds = self._make_thresholds()
        h = (self._thresholds / norm).clip(max=1.0)
        # A tensor without values has neither a threshold nor a norm.
        return paddle.where(norm > 0, h, paddle.ones_like(h)), {}

    def _make_thresholds(self) -> Tensor:
        sizes = self._sizes()
        total = self._known_reducer().sum_over_model(sizes)
        share = paddle.to_tensor(sizes, "float64") / total
        return (self.lambda_abs * share).astype("float32")

    def _sizes(self) -> list[int]:
        """Return each whole tensor's number of values; 0: not clipped."""
        if not self._table.is_bound:
            return [
                math.prod(self._shapes[i]) for i in range(len(self._table.keys))
            ]
        num_tp_ranks = self._known_reducer().num_tp_ranks
        return [
            math.prod(tensor.shape)
            * (num_tp_ranks if tensor.is_tp_split else 1)
            * tensor.takes_part
            for tensor in self._table.layout
        ]

    def _tensor_metrics(self) -> State:
        return {"threshold": self._thresholds}
