# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lion: sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor

from adagc_lab.optimizers import base


class Lion(base.DecoupledOptimizer):
    r"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2).

    With weight :math:`w`, gradient :math:`g`, moment :math:`m`, learning rate
    :math:`\eta` and weight decay :math:`\lambda`:

    .. math::

        w &\leftarrow (1 - \eta \lambda) w
            - \eta \, \mathrm{sign}(\beta_1 m + (1 - \beta_1) g) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2) g
    """

    def __init__(
        self,
        learning_rate: base.LearningRate,
        beta1: float = 0.9,
        beta2: float = 0.99,
        parameters: Sequence[Tensor] | None = None,
        weight_decay: float = 0.0,
        **shared: Any,
    ) -> None:
        options = {"beta1": beta1, "beta2": beta2, "weight_decay": weight_decay}
        super().__init__(learning_rate, parameters, options, **shared)

    def _start(self, parameter: Tensor) -> base.Start:
        return {"moment1": None}

    def _update(self, step: base.ParameterStep) -> None:
        moment, gradient = step.state["moment1"], step.gradient
        beta1, beta2 = step.options["beta1"], step.options["beta2"]
        direction = beta1 * moment + (1 - beta1) * gradient
        step.take(step.lr * paddle.sign(direction))
        paddle.assign(beta2 * moment + (1 - beta2) * gradient, moment)
