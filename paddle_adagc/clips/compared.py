# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips that AdaGC is compared with: by the global norm, by fixed shares.

And two that are no clips: one sets every norm, one drops steps.
"""

from __future__ import annotations

import math
import operator
from collections import ChainMap
from collections.abc import Sequence
from functools import partial

import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.checks import (
    Argument,
    check_decay,
    check_integer,
    check_positive,
)
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.gradients import NonFinite
from paddle_adagc.clips.memory import State
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.state import Quantity


class GlobalNormClip(TensorScalingClip):
    """A clip whose one state follows the norm over all tensors.

    A step with a non-finite tensor is no observation: the norm of the others is
    not the model's. Takes one parameter group. In a hybrid-parallel run every
    step sums two numbers over all ranks, in one all-reduce.
    """

    needs_one_group = True


def observed_norm(step: Step) -> tuple[Tensor, Tensor]:
    """L2 norm over the finite tensors of all ranks, and if that is all.

    float32 and bool ``[1]``.
    """
    counted = step.reducer.counted(step.norm)
    is_not = paddle.logical_not(paddle.isfinite(counted)).astype("float64")
    sums = [rule.global_squared_norm(counted), is_not.sum(keepdim=True)]
    total, number = step.reducer.global_sum(paddle.concat(sums)).split(2)
    return total.sqrt().astype("float32"), number == 0


class ClipGradByGlobalAdaGC(GlobalNormClip):
    """AdaGC's rule with one gamma on the norm over all tensors.

    Adaptive but not local: the variant that the paper's ablation ("Adaptivity
    Efficacy and Locality Granularity") compares AdaGC with. Arguments, warm-up,
    and the treatment of non-finite gradients are those of
    :class:`paddle_adagc.ClipGradByAdaGC` with ``strict=True``; gamma stays in a
    step that has one.

    Args:
        lambda_rel: By which the global norm may exceed gamma, > 0.
        beta: Smoothing coefficient of gamma, in [0, 1).
        lambda_abs: Global norm allowed in the warm-up, > 0.
        t_start: Number of warm-up steps, at least 0.
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
        RuntimeError: In a step, the optimizer has several parameter groups.

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByGlobalAdaGC
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     parameters=model.parameters(),
        ...     grad_clip=(clip := ClipGradByGlobalAdaGC()),
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> list(clip.state_dict()["gamma"])
        ['global']
    """

    lambda_rel = Argument(check_positive)
    lambda_abs = Argument(check_positive)
    beta = Argument(check_decay)
    t_start = Argument(partial(check_integer, minimum=0))

    def __init__(
        self,
        lambda_rel: float = 1.04,
        beta: float = 0.99,
        lambda_abs: float = 1.0,
        t_start: int = 100,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.lambda_rel, self.lambda_abs = lambda_rel, lambda_abs
        self.beta, self.t_start = beta, t_start
        self.keep(
            Quantity(
                name="gamma", start=math.inf, is_global=True, is_positive=True
            )
        )

    @property
    def _num_warmup(self) -> int:
        return self.t_start

    def advance(self, step: Step) -> Decision:
        """Apply AdaGC's rule to the norm over all tensors."""
        total, is_whole = observed_norm(step)
        gamma = step.state["gamma"]
        if step.index < self.t_start:
            h = rule.global_scale(total, self.lambda_abs)
            new = rule.running_minimum(h * total, gamma)
        else:
            h = rule.adaptive_scale(total, gamma, self.lambda_rel)
            new = rule.moving_average(h * total, gamma, self.beta)
        new = paddle.where(is_whole, new, gamma)
        return Decision(h.expand_as(step.norm), {"gamma": new})


_EPSILON = 1e-6
_STABILIZER_EPSILON = 1e-8


class ClipGradByZClip(GlobalNormClip):
    r"""ZClip (Kumar et al. 2025, arXiv 2504.02507).

    With :math:`n` the global norm, :math:`\mu` and :math:`\sigma^2` the moving
    mean and variance of the clipped norms, and :math:`z = (n - \mu) / (\sigma
    + 10^{-6})`:

    .. math::

        \tau &= \mu + z_{thres} \sigma / (z / z_{thres}) \text{ if } z >
        z_{thres}, \text{ else } n \\
        g &\leftarrow g \min(\tau, n_{max}) / n \\
        \mu &\leftarrow \alpha \mu + (1 - \alpha) \tau \\
        \sigma^2 &\leftarrow \alpha \sigma^2 + (1 - \alpha) (\tau - \mu)^2

    The first ``warmup_steps`` norms give the first :math:`\mu` and
    :math:`\sigma^2` (of the population); meanwhile only :math:`n_{max}` clips.
    A step with a non-finite tensor, or with none that is not 0, is no
    observation.

    This is the authors' default: ``mode="zscore"``,
    ``clip_option="adaptive_scaling"`` and ``clip_factor=1``.

    Args:
        alpha: :math:`\alpha`, smoothing coefficient in [0, 1).
        z_thres: :math:`z_{thres}`; the original's default 2.5, the AdaGC paper
            uses 2.0.
        max_grad_norm: :math:`n_{max}`; None: no such bound.
        warmup_steps: At least 1.
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
        RuntimeError: In a step, the optimizer has several parameter groups.

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByZClip
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     parameters=model.parameters(),
        ...     grad_clip=(clip := ClipGradByZClip(max_grad_norm=None)),
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> clip.state_dict()["count"]["global"].item()
        1.0
    """

    alpha = Argument(check_decay)
    z_thres = Argument(check_positive)
    max_grad_norm = Argument(
        lambda name, value: (
            None if value is None else check_positive(name, value)
        )
    )
    warmup_steps = Argument(partial(check_integer, minimum=1))

    def __init__(
        self,
        alpha: float = 0.97,
        z_thres: float = 2.5,
        max_grad_norm: float | None = 1.0,
        warmup_steps: int = 25,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.alpha, self.z_thres = alpha, z_thres
        self.max_grad_norm, self.warmup_steps = max_grad_norm, warmup_steps
        self.keep(
            *(
                Quantity(name=name, start=0.0, is_global=True)
                for name in ("count", "mean", "variance")
            )
        )

    def advance(self, step: Step) -> Decision:
        """Clip by the z-score of the norm over all tensors."""
        total, is_whole = observed_norm(step)
        state = step.state
        is_warm_up = state["count"] < self.warmup_steps
        spread = rule.square_root(state["variance"])
        z = (total - state["mean"]) / (spread + _EPSILON)
        tau = state["mean"] + self.z_thres**2 * spread / z
        is_outlier = paddle.logical_and(~is_warm_up, z > self.z_thres)
        tau = paddle.where(is_outlier, tau, total)
        bound = tau.clip(max=self.max_grad_norm or math.inf)
        h = paddle.where(total > 0, bound / total, paddle.ones_like(total))
        observed = self._observe(tau, is_warm_up, state)
        is_observed = paddle.logical_and(is_whole, tau > 0)
        new = {
            name: paddle.where(is_observed, observed[name], old)
            for name, old in state.items()
        }
        return Decision(h.clip(max=1.0).expand_as(step.norm), new)

    def _observe(self, tau: Tensor, is_warm_up: Tensor, state: State) -> State:
        """Take running mean and variance in the warm-up, then moving ones."""
        count = state["count"] + 1
        weight = paddle.where(
            is_warm_up, 1 / count, paddle.full([1], 1 - self.alpha, "float32")
        )
        deviation = tau - state["mean"]
        mean = rule.between(state["mean"], tau, weight)
        # In the warm-up this is Welford's sum, divided by the count.
        squared = paddle.where(
            is_warm_up, deviation * (tau - mean), (tau - mean).square()
        )
        variance = rule.between(state["variance"], squared, weight)
        return {"count": count, "mean": mean, "variance": variance}


class ClipGradBySkipStep(GlobalNormClip):
    r"""Drops a step whose global norm stands out of those before it.

    As OLMo's skip-step optimizers (Allen Institute for AI, 2024), by the norm
    alone: with the mean :math:`\mu` and the standard deviation :math:`s`
    (:math:`n - 1` in the denominator) of the last ``window`` global norms, all
    gradients of a step with :math:`\|g\| > \mu + k s` become 0. Else the global
    norm is clipped to ``max_grad_norm``. At least half a window has to be
    known. Dropped steps enter the window, too; a step with a non-finite
    tensor, or with none that is not 0, does not.

    The original leaves the optimizer's moments and the weights untouched. A
    clip cannot: Adam sees gradients of 0, and its momentum moves on.

    Args:
        sigma: :math:`k`, greater than 0.
        window: Norms that are remembered, at least 2.
        max_grad_norm: None: no such bound.
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.
        RuntimeError: In a step, the optimizer has several parameter groups.

    Example:
        >>> import paddle
        >>> from paddle_adagc import make_clip
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     parameters=model.parameters(),
        ...     grad_clip=(clip := make_clip("skip_step", sigma=4.0)),
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> clip.metrics()["step"]
        0
    """

    sigma = Argument(check_positive)
    window = Argument(partial(check_integer, minimum=2), is_fixed=True)
    max_grad_norm = Argument(
        lambda name, value: (
            None if value is None else check_positive(name, value)
        )
    )

    def __init__(
        self,
        sigma: float = 6.0,
        window: int = 128,
        max_grad_norm: float | None = 1.0,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.sigma, self.window = sigma, window
        self.max_grad_norm = max_grad_norm
        self._names = [f"norm_{i}" for i in range(self.window)]
        self.keep(
            *(Quantity(name=n, start=0.0, is_global=True) for n in self._names)
        )

    def advance(self, step: Step) -> Decision:
        """Drop the step, or clip it by the norm over all tensors."""
        total, is_whole = observed_norm(step)
        past = paddle.concat([step.state[name] for name in self._names])
        is_dropped = _exceeds_deviations(total, past, self.sigma)
        h = rule.global_scale(total, self.max_grad_norm or math.inf)
        h = paddle.where(is_dropped, paddle.zeros_like(h), h)
        is_observed = paddle.logical_and(is_whole, total > 0)
        shifted = paddle.concat([total, past[:-1]])
        new = paddle.where(is_observed, shifted, past).split(self.window)
        state = dict(zip(self._names, new, strict=True))
        return Decision(h.expand_as(step.norm), state)

    def _tensor_metrics(self) -> State:
        return {}  # the window is about no tensor


class ClipGradByGradientStabilizer(TensorScalingClip):
    r"""GradientStabilizer (Huang et al. 2025, arXiv 2502.17055).

    Every tensor's gradient keeps its direction; its norm :math:`n` becomes the
    ratio of moving averages, which no single norm can raise far:

    .. math::

        m \leftarrow \gamma_1 m + (1 - \gamma_1) n, \qquad
        v \leftarrow \gamma_2 v + (1 - \gamma_2) n^2, \qquad
        g \leftarrow \frac{g}{n} \frac{\hat m}{\sqrt{\hat v} + 10^{-8}}

    with :math:`\hat m = m / (1 - \gamma_1^t)`, and :math:`\hat v` likewise,
    over the :math:`t` steps in which the tensor had a finite norm above 0. They
    become about 1, larger or smaller than they were: for optimizers that do not
    depend on the gradients' scale, such as Adam with a small epsilon. Defaults
    are those of the authors' Stable-SPAM, where the method is a part.

    Args:
        gamma1: :math:`\gamma_1` in [0, 1).
        gamma2: :math:`\gamma_2` in [0, 1).
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range.

    Example:
        >>> import paddle
        >>> from paddle_adagc import make_clip
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     parameters=model.parameters(),
        ...     grad_clip=(clip := make_clip("gradient_stabilizer")),
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> clip.metrics()["step"]
        0
    """

    gamma1 = Argument(check_decay)
    gamma2 = Argument(check_decay)
    largest_h = math.inf

    def __init__(
        self,
        gamma1: float = 0.7,
        gamma2: float = 0.9,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.gamma1, self.gamma2 = gamma1, gamma2
        self.keep(
            *(
                Quantity(name=name, start=0.0)
                for name in ("count", "mean", "root_mean_square")
            )
        )

    def advance(self, step: Step) -> Decision:
        """Set each norm to the ratio of its moving averages."""
        old, norm = step.state, step.norm.astype("float64")
        is_observed = paddle.logical_and(paddle.isfinite(norm), norm > 0)
        norm = paddle.where(is_observed, norm, paddle.ones_like(norm))
        count = old["count"].astype("float64") + 1
        mean, root = (
            old[name].astype("float64") for name in ("mean", "root_mean_square")
        )
        mean = rule.between(mean, norm, 1 - self.gamma1)
        square = rule.between(root.square(), norm.square(), 1 - self.gamma2)
        corrected = mean / (1 - paddle.full_like(count, self.gamma1) ** count)
        spread = square / (1 - paddle.full_like(count, self.gamma2) ** count)
        h = corrected / (spread.sqrt() + _STABILIZER_EPSILON) / norm
        observed = {
            "count": count,
            "mean": mean,
            "root_mean_square": square.sqrt(),
        }
        new = {
            name: paddle.where(is_observed, value.astype("float32"), old[name])
            for name, value in observed.items()
        }
        h = paddle.where(is_observed, h, paddle.ones_like(h))
        return Decision(h.astype("float32"), new)


class ClipGradByTensorWiseGC(TensorScalingClip):
    r"""A fixed threshold per tensor, by its share of the model's values.

    With :math:`d_i` the number of values of tensor :math:`i` and :math:`D` that
    of all tensors that are clipped: :math:`h_i = \min(\lambda_i / \|g_i\|, 1)`,
    :math:`\lambda_i = \lambda_{abs} d_i / D`. Local but not adaptive: the
    variant that the paper's ablation ("Adaptivity Efficacy and Locality
    Granularity") compares AdaGC with.

    Thresholds count whole tensors, however a layout splits them. Bound to a
    model, :math:`D` is known from the start (one gather in the first step of a
    hybrid-parallel run, none later); after freezing or unfreezing layers call
    :meth:`bind` again. Unbound, it grows with the tensors that it has seen.

    Args:
        lambda_abs: :math:`\lambda_{abs}`, greater than 0.
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``lambda_abs`` is not positive.

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByTensorWiseGC
        >>> model = paddle.nn.Linear(3, 1)  # 3 weights and 1 bias
        >>> clip = ClipGradByTensorWiseGC(lambda_abs=1.0)
        >>> clip.bind(model)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     parameters=model.parameters(), grad_clip=clip
        ... )
        >>> model(paddle.ones([2, 3])).sum().backward()
        >>> optimizer.step()
        >>> clip.metrics()["tensors"]["weight"]["threshold"]
        0.75
    """

    lambda_abs = Argument(check_positive, is_fixed=True)

    def __init__(
        self,
        lambda_abs: float = 1.0,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.lambda_abs = lambda_abs
        self._thresholds = paddle.zeros([0], "float32")  # [num_tensors]
        self._layout_counted: Sequence[TensorLayout] | None = None

    def advance(self, step: Step) -> Decision:
        """Clip each tensor by its share of the bound."""
        layout = step.tensors.layout
        for index in step.present if layout else ():
            if not layout[index].takes_part:
                raise RuntimeError(
                    f"{layout[index].key} was frozen or kept from being "
                    "clipped when bind() counted the model's values: call "
                    "bind(model) again after that has changed, on every rank"
                )
        is_larger = self._thresholds.shape[0] < len(step.keys)
        if is_larger or self._layout_counted is not layout:
            self._thresholds = self._make_thresholds(step)
            self._layout_counted = layout
        h = (self._thresholds / step.norm).clip(max=1.0)
        # A tensor without values has neither a threshold nor a norm.
        h = paddle.where(step.norm > 0, h, paddle.ones_like(h))
        return Decision(h, {})

    def _make_thresholds(self, step: Step) -> Tensor:
        """Share the bound by each whole tensor's number of values."""
        sizes = step.sizes
        if step.tensors.layout:
            takes_part = (tensor.takes_part for tensor in step.tensors.layout)
            sizes = [*map(operator.mul, sizes, takes_part)]
        mine = dict(zip(step.keys, sizes, strict=True))
        known = ChainMap(*step.reducer.gather(mine))
        total = paddle.to_tensor([float(sum(known.values()))], "float64")
        share = paddle.to_tensor(sizes, "float64") / total
        return (self.lambda_abs * share).astype("float32")

    def _tensor_metrics(self) -> State:
        known = self._thresholds
        if self._layout_counted is not self._tensors.layout:
            known = paddle.zeros([0], "float32")
        missing = len(self._tensors.keys) - known.shape[0]
        unknown = paddle.full([missing], math.inf, "float32")
        return {"threshold": paddle.concat([known, unknown])}


def _exceeds_deviations(norm: Tensor, past: Tensor, sigma: float) -> Tensor:
    """Whether a norm is over ``sigma`` deviations above those before it.

    ``past`` is float32 ``[window]``, 0 where nothing was observed so far; with
    less than half of it known, or 2, no norm is. Returns bool ``[1]``.
    """
    known, values = past > 0, past.astype("float64")
    count = known.astype("float64").sum()
    mean = values.sum() / count.clip(min=1.0)
    deviations = paddle.where(known, values - mean, paddle.zeros_like(values))
    variance = deviations.square().sum() / (count - 1).clip(min=1.0)
    is_known = count >= max(2, past.shape[0] // 2)
    bound = mean + sigma * variance.sqrt()
    return paddle.logical_and(is_known, norm.astype("float64") > bound)
