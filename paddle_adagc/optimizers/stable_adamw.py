# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""StableAdamW: AdamW whose learning rate falls where its moments lag behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.optimizers.adam import (
    AdamOptimizer,
    adam_direction,
    advance_powers,
    corrected_moments,
    next_moments,
    square_root,
)
from paddle_adagc.optimizers.base import Parameters, Parts, assign_


def stable_learning_rate(
    lr: Tensor,
    gradient: Tensor,
    square: Tensor,
    epsilon: float,
    parts: Parts,
) -> Tensor:
    r"""Learning rate of one tensor (Wortsman et al. 2023, algorithm 2).

    .. math::

        \mathrm{RMS} = \sqrt{\mathrm{mean}(g^2 / \max(v, \epsilon^2))}, \quad
        \eta' = \eta / \max(1, \mathrm{RMS})

    Args:
        lr: :math:`\eta`, ``[]``.
        gradient: :math:`g`.
        square: :math:`v`, the second moment with this step's gradient and
            without bias.
        epsilon: :math:`\epsilon`.
        parts: The ranks' parts of the tensor; the mean is the whole tensor's.

    Returns:
        :math:`\eta'`, as many axes as the gradient, all of size 1.
    """
    ratio = gradient.square() / paddle.clip(square, min=epsilon**2)
    rms = square_root(parts.mean(ratio))
    return lr / paddle.clip(rms, min=1.0)


class StableAdamW(AdamOptimizer):
    r"""StableAdamW (Wortsman et al. 2023, arXiv 2304.13013).

    AdamW with :func:`stable_learning_rate`, for the update and for the weight
    decay. Where tensor parallelism splits a tensor, its mean is taken over
    the group (one all-reduce of 4 bytes per such tensor and step). Sharding
    that splits tensors (V2, stage 3) is refused.

    Args:
        learning_rate: A number or a scheduler.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the square root of the second moment; its square
            bounds the second moment in the RMS.
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
        ValueError: An argument is out of its range, or sharding splits tensors.
    """

    _needs_whole_tensors = True

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        beta1: float = 0.9,
        beta2: float = 0.99,
        epsilon: float = 1e-6,
        parameters: Parameters | None = None,
        weight_decay: float = 0.01,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            parameters,
            {
                "beta1": beta1,
                "beta2": beta2,
                "epsilon": epsilon,
                "weight_decay": weight_decay,
            },
            apply_decay_param_fun=apply_decay_param_fun,
            grad_clip=grad_clip,
            multi_precision=multi_precision,
            name=name,
        )

    def _update(
        self,
        parameter: Tensor,
        weight: Tensor,
        gradient: Tensor,
        lr: Tensor,
        options: Mapping[str, float],
    ) -> None:
        betas, epsilon = (
            (options["beta1"], options["beta2"]),
            options["epsilon"],
        )
        state = next_moments(gradient, self._adam_state(parameter), *betas)
        _, square = corrected_moments(state)
        lr = stable_learning_rate(
            lr, gradient, square, epsilon, Parts(parameter)
        ).reshape([])
        decayed = weight * (1 - lr * options["weight_decay"])
        assign_(weight, decayed - lr * adam_direction(state, epsilon))
        self._set_adam_state(parameter, advance_powers(state, *betas))
