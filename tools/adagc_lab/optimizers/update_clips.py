# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdamW with a clip of its update, tensor by tensor or unit by unit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import paddle
from paddle import Tensor

from adagc_lab.clips.agc import unit_axes
from adagc_lab.optimizers import base
from adagc_lab.optimizers.base import (
    AdamLike,
    ParameterStep,
    adam_update,
    square_root,
)
from paddle_adagc.checks import check_choice, check_positive

Form = Literal["original", "paper"]


def _sum(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    # Paddle takes no axes for all of them.
    return values.sum(axes, keepdim=True) if axes else values


@dataclasses.dataclass(frozen=True, kw_only=True)
class AGC:
    r"""AGC on the update :math:`\Delta` (after Brock et al. 2021).

    .. math::

        \Delta_u \leftarrow \lambda \frac{\max(\|W_u\|, 10^{-3})}
        {\max(\|\Delta_u\|, 10^{-6})} \Delta_u
        \quad \text{if } \|\Delta_u\| > \lambda \max(\|W_u\|, 10^{-3})

    for every unit :math:`u` of :class:`adagc_lab.clips.agc.ClipGradByAGC`,
    which clips the gradient so, as the original. The AdaGC paper's table
    applies AGC to the update, and has no least weight norm: with
    ``form="paper"`` a unit whose weights are 0 never moves.
    """

    form: Form = "original"
    """``"paper"``: that of the AdaGC paper's table."""

    lambda_rel: float | None = None
    """:math:`\\lambda`; by default 0.01, in the paper's form 0.001."""

    def __post_init__(self) -> None:
        _fill(self, "lambda_rel", original=1e-2, paper=1e-3)

    def scale(
        self, step: ParameterStep, update: Tensor, is_embedding: bool
    ) -> Tensor:
        """Factor of every unit's update; the rows of an embedding are units."""
        axes = unit_axes(update.ndim, is_embedding)
        of_weight, of_update = (
            square_root(_sum(x.square(), axes)) for x in (step.weight, update)
        )
        if self.form == "original":
            of_weight = paddle.clip(of_weight, min=1e-3)
        bound = self.lambda_rel * of_weight
        ratio = bound / paddle.clip(of_update, min=1e-6)
        return paddle.where(of_update > bound, ratio, paddle.ones_like(ratio))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clippy:
    r"""Clippy (Tang et al. 2023, arXiv 2302.09178, algorithm 2).

    Per tensor, over its elements :math:`j`:

    .. math::

        \sigma = \min\left(1, \min_j \frac{\lambda_{rel} |w_j| + \lambda_{abs}}
        {\eta |\Delta_j|}\right)

    where :math:`\Delta_j = 0` counts as the ratio 1. The AdaGC paper's table
    has one ratio of maximum norms instead:

    .. math::

        \sigma = \min\left(1, \frac{\lambda_{rel} \|w\|_\infty + \lambda_{abs}}
        {\eta \|\Delta\|_\infty}\right)
    """

    form: Form = "original"
    """``"paper"``: that of the AdaGC paper's table."""

    lambda_rel: float | None = None
    """By default 0.1; in the paper's form 0.01."""

    lambda_abs: float | None = None
    """Greater than 0: with 0, as others allow, weights that are 0 stay so. By
    default 1e-7; in the paper's form 0.5, with which it hardly ever
    clips at the learning rates of language models."""

    def __post_init__(self) -> None:
        _fill(self, "lambda_rel", original=1e-1, paper=1e-2)
        _fill(self, "lambda_abs", original=1e-7, paper=0.5)

    def scale(
        self, step: ParameterStep, update: Tensor, is_embedding: bool
    ) -> Tensor:
        """Factor of the tensor's update."""
        size, change = step.weight.abs(), step.lr * update.abs()
        if self.form == "paper":
            size, change = size.max(), change.max()
        ratio = (self.lambda_rel * size + self.lambda_abs) / change
        ratio = paddle.where(change > 0, ratio, paddle.ones_like(ratio))
        if self.form == "original":
            ratio = ratio.min()
        return paddle.clip(ratio, max=1.0)


def _fill(
    clip: AGC | Clippy, name: str, *, original: float, paper: float
) -> None:
    """Set a field that was not given to its form's default; check others."""
    defaults = {"original": original, "paper": paper}
    default = defaults[check_choice("form", clip.form, defaults)]
    value = getattr(clip, name)
    number = default if value is None else check_positive(name, value)
    object.__setattr__(clip, name, number)


UpdateClip = AGC | Clippy
"""Gives the factor of an update, in (0, 1], with as many axes as the update:
``w -= lr * scale * update``."""


class ClippedAdamW(AdamLike):
    r"""AdamW with a clip of its update.

    With AdamW's update :math:`\Delta` and the clip's factor :math:`\sigma`:

    .. math::

        w \leftarrow (1 - \eta \lambda) w - \eta \, \sigma \Delta

    The weight decay is no part of what is clipped, and :math:`\sigma` sees the
    weights before they decay. Layouts that split tensors are refused.

    Args:
        learning_rate: :math:`\eta`, a number or a scheduler.
        update_clip: :class:`~adagc_lab.optimizers.update_clips.AGC` or
            :class:`~adagc_lab.optimizers.update_clips.Clippy`.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        apply_clip_param_fun: Whether the update of the parameter of this name
            is clipped; None: all are. (The original AGC leaves out the final
            layer.)
        is_embedding_fun: Whether the parameter of this name is an embedding,
            whose rows are AGC's units; None: none is.
        parameters: Parameters; no groups of them.
        weight_decay: :math:`\lambda`, not negative.
        **shared: See :class:`.base.DecoupledOptimizer`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A hyper-parameter is out of its range, or sharding splits
            tensors.

    Example:
        >>> import paddle
        >>> from adagc_lab.optimizers import ClippedAdamW
        >>> from adagc_lab.optimizers.update_clips import Clippy
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = ClippedAdamW(
        ...     3e-4, Clippy(), parameters=model.parameters()
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
    """

    needs_whole_tensors = True

    def __init__(
        self,
        learning_rate: base.LearningRate,
        update_clip: UpdateClip,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        apply_clip_param_fun: Callable[[str], bool] | None = None,
        is_embedding_fun: Callable[[str], bool] | None = None,
        parameters: Sequence[Tensor] | None = None,
        weight_decay: float = 0.01,
        **shared: Any,
    ) -> None:
        if not isinstance(update_clip, UpdateClip):
            raise TypeError(
                f"update_clip={update_clip!r} is no clip of updates: use AGC "
                "or Clippy of adagc_lab.optimizers.update_clips"
            )
        self._update_clip = update_clip
        self._apply_clip_param_fun = apply_clip_param_fun
        self._is_embedding_fun = is_embedding_fun
        options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        options["weight_decay"] = weight_decay
        super().__init__(learning_rate, parameters, options, **shared)

    def _update(self, step: ParameterStep) -> None:
        update, _ = adam_update(step, step.gradient)
        name, is_clipped = step.parameter.name, self._apply_clip_param_fun
        if is_clipped is None or is_clipped(name):
            has_rows = self._is_embedding_fun
            is_embedding = has_rows is not None and has_rows(name)
            update *= self._update_clip.scale(step, update, is_embedding)
        step.take(step.lr * update)
