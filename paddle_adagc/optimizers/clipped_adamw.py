# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdamW whose updates are clipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paddle import Tensor
from paddle.nn.clip import ClipGradBase
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.optimizers.adam import (
    AdamOptimizer,
    adam_direction,
    advance_powers,
    next_moments,
)
from paddle_adagc.optimizers.decoupled import Parameters, assign_
from paddle_adagc.optimizers.tensor_parts import Parts
from paddle_adagc.optimizers.update_clips import UpdateClip


class ClippedAdamW(AdamOptimizer):
    r"""AdamW with a clip of its update.

    With AdamW's update :math:`\Delta` and the clip's factor :math:`\sigma`:

    .. math::

        w \leftarrow (1 - \eta \lambda) w - \eta \, \sigma \Delta

    The weight decay is no part of what is clipped, and :math:`\sigma` sees the
    weights before they decay. What a clip reduces over a tensor is reduced over
    the tensor-parallel group where that splits it, in one small all-reduce (for
    Clippy's paper form two) per such tensor and step; sharding that splits
    tensors (V2, stage 3) is refused.

    Args:
        learning_rate: A number or a scheduler.
        update_clip: :class:`~paddle_adagc.optimizers.update_clips.AGC`,
            :class:`~paddle_adagc.optimizers.update_clips.Clippy` or
            :class:`~paddle_adagc.optimizers.update_clips.RMSClip`.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the square root of the second moment.
        apply_clip_param_fun: Whether the update of the parameter of this name
            is clipped; None: all are. (The original AGC leaves out the final
            layer.)
        is_embedding_fun: Whether the parameter of this name is an embedding,
            whose rows are AGC's units; None: none is.
        parameters: Parameters, or groups of them (see
            :class:`~paddle_adagc.optimizers.decoupled.DecoupledOptimizer`).
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
        update_clip: UpdateClip,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        apply_clip_param_fun: Callable[[str], bool] | None = None,
        is_embedding_fun: Callable[[str], bool] | None = None,
        parameters: Parameters | None = None,
        weight_decay: float = 0.01,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        if not isinstance(update_clip, UpdateClip):
            raise TypeError(
                f"update_clip={update_clip!r} is no clip of updates: use AGC, "
                "Clippy or RMSClip of paddle_adagc.optimizers.update_clips"
            )
        self._update_clip = update_clip
        self._apply_clip_param_fun = apply_clip_param_fun
        self._is_embedding_fun = is_embedding_fun
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
        betas = options["beta1"], options["beta2"]
        state = next_moments(gradient, self._adam_state(parameter), *betas)
        update = adam_direction(state, options["epsilon"])
        is_clipped = self._apply_clip_param_fun
        if is_clipped is None or is_clipped(parameter.name):
            is_embedding = self._is_embedding_fun
            update *= self._update_clip.scale(
                update,
                weight,
                lr,
                Parts(parameter),
                is_embedding is not None and is_embedding(parameter.name),
            )
        decayed = weight * (1 - lr * options["weight_decay"])
        assign_(weight, decayed - lr * update)
        self._set_adam_state(parameter, advance_powers(state, *betas))
