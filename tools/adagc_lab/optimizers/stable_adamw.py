# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""StableAdamW: AdamW whose learning rate falls where its moments lag behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from adagc_lab.optimizers import base
from adagc_lab.optimizers.base import AdamLike, adam_update, square_root

_TINY = float(np.finfo("float32").tiny)


class StableAdamW(AdamLike):
    r"""StableAdamW (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2).

    AdamW with a learning rate :math:`\eta'` of each tensor, for the update and
    for the weight decay. With gradient :math:`g` and second moment :math:`v`
    without bias:

    .. math::

        \mathrm{RMS} = \sqrt{\mathrm{mean}(g^2 / \max(v, \epsilon^2))}, \quad
        \eta' = \eta / \max(1, \mathrm{RMS})

    Layouts that split tensors are refused.

    Args:
        learning_rate: :math:`\eta`, a number or a scheduler.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: :math:`\epsilon`, added to the root of the second moment.
        parameters: Parameters; no groups of them.
        weight_decay: Not negative.
        **shared: See :class:`.base.DecoupledOptimizer`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A hyper-parameter is out of its range, or sharding splits
            tensors.

    Example:
        >>> import paddle
        >>> from adagc_lab.optimizers import StableAdamW
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = StableAdamW(3e-4, parameters=model.parameters())
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
    """

    needs_whole_tensors = True

    def __init__(
        self,
        learning_rate: base.LearningRate,
        beta1: float = 0.9,
        beta2: float = 0.99,
        epsilon: float = 1e-6,
        parameters: Sequence[Tensor] | None = None,
        weight_decay: float = 0.01,
        **shared: Any,
    ) -> None:
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        options["weight_decay"] = weight_decay
        super().__init__(learning_rate, parameters, options, **shared)

    def _update(self, step: base.ParameterStep) -> None:
        update, square = adam_update(step, step.gradient)
        # A smaller square is 0 in float32, and 0 / 0 is NaN.
        least = max(step.options["epsilon"] ** 2, _TINY)
        ratio = step.gradient.square() / paddle.clip(square, min=least)
        rms = square_root(ratio.sum() / ratio.size)
        step = step._replace(lr=step.lr / paddle.clip(rms, min=1.0).reshape([]))
        step.take(step.lr * update)
