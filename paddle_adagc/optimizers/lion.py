# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lion: sign of an interpolated momentum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.optimizers.base import (
    DecoupledOptimizer,
    Parameters,
    assign_,
)

_MOMENT = "moment1"


def lion_step(
    weight: Tensor,
    gradient: Tensor,
    moment: Tensor,
    lr: Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor]:
    r"""One step of Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2).

    With ``weight`` :math:`w`, ``gradient`` :math:`g`, ``moment`` :math:`m`,
    ``lr`` :math:`\eta` and ``weight_decay`` :math:`\lambda`:

    .. math::

        w &\leftarrow (1 - \eta \lambda) w
            - \eta \, \mathrm{sign}(\beta_1 m + (1 - \beta_1) g) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2) g

    All tensors are of one shape and dtype; ``lr`` is ``[]``.

    Returns:
        The new weight and moment.
    """
    direction = paddle.sign(beta1 * moment + (1 - beta1) * gradient)
    weight = weight * (1 - lr * weight_decay) - lr * direction
    return weight, beta2 * moment + (1 - beta2) * gradient


class Lion(DecoupledOptimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675).

    The rule is :func:`lion_step`. Its updates have the size of the learning
    rate whatever the gradient, so that it takes a smaller one than AdamW and a
    larger weight decay (the authors: 3 to 10 times). It keeps one moment, and
    works element by element: under every kind of sharding.

    Args:
        learning_rate: A number or a scheduler.
        beta1: Share of the moment in the update's direction.
        beta2: Decay of the moment.
        parameters: Parameters, or groups of them (see
            :class:`~paddle_adagc.optimizers.base.DecoupledOptimizer`).
        weight_decay: Decoupled weight decay.
        apply_decay_param_fun: Parameter name -> whether the weight decays;
            None: all do.
        grad_clip: Clips the gradients first.
        multi_precision: Keep float32 master weights of low-precision weights.
        name: Prefix of the accumulators' names.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A beta is outside of [0, 1), or ``weight_decay`` negative.
    """

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        beta1: float = 0.9,
        beta2: float = 0.99,
        parameters: Parameters | None = None,
        weight_decay: float = 0.0,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            parameters,
            {"beta1": beta1, "beta2": beta2, "weight_decay": weight_decay},
            apply_decay_param_fun=apply_decay_param_fun,
            grad_clip=grad_clip,
            multi_precision=multi_precision,
            name=name,
        )

    def _add_state(
        self,
        parameter: Tensor,
        held: Tensor,
        dtype: Any,
        options: Mapping[str, float],
    ) -> None:
        self._add_accumulator(_MOMENT, held, dtype=dtype)

    def _update(
        self,
        parameter: Tensor,
        weight: Tensor,
        gradient: Tensor,
        lr: Tensor,
        options: Mapping[str, float],
    ) -> None:
        (moment,) = self._state_of(parameter, _MOMENT)
        new_weight, new_moment = lion_step(
            weight, gradient, moment, lr, **options
        )
        assign_(weight, new_weight)
        assign_(moment, new_moment)
