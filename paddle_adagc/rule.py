# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the AdaGC paper as pure functions on vectors.

=============  ==============================================================
paper          here
=============  ==============================================================
``||g_i||``    ``norm``: L2 norm of each tensor's gradient, before the clip
``||g||``      ``global_norm``: L2 norm over all tensors
``gamma_i``    ``gamma``: the reference norm; ``inf`` until a norm was observed
``h_i``        ``h``: the factor that each tensor's gradient is multiplied by
``lambda_abs`` threshold of the warm-up's global clipping
``lambda_rel`` threshold of the adaptive phase, relative to ``gamma``
``beta``       smoothing coefficient of the moving average
--             ``support``: warm-up steps that agree with gamma, 0 to 10
=============  ==============================================================

``norm``, ``gamma`` and ``h`` are float32 of shape ``[num_tensors]``.
``lambda_rel`` and ``beta`` of the adaptive phase may differ between tensors:
``lambda_rel`` is then float32 of that shape, and ``beta`` float64, rounded
where a float would be, so that equal values give equal bits. Nothing here waits
for the device.

What is no observation. gamma keeps the smallest norm of the warm-up, and the
adaptive phase lets it grow by ``(1 - beta) * (lambda_rel - 1)`` a step at most:
0.04%, so that a norm 20 times too small costs 7,500 steps. Hence only a norm
that tells how large a tensor's gradients are may enter gamma:

- Never zero (no gradient, an expert without tokens) or a norm that is not
  finite (Inf, NaN, or an overflow of the squared norm), in every function
  below. Zero would make gamma 0 in the warm-up, and take 1% off in the adaptive
  phase (``beta`` 0.99), which 25 steps restore; Inf and NaN would stay.
- In the warm-up no norm that the tensor's other steps contradict, see
  :func:`supported_minimum`: of a bad step, of an expert that saw hardly a
  token, of a scalar whose gradient changes its sign.

Small norms that agree with one another are observations. So gamma starts too
low where a gradient is zero by construction and then grows (LoRA's A, what
lies below a zero-initialised head); the clip warns of it.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import paddle
from paddle import Tensor

# Measured in the first 100 steps of the ten proxies of the laboratory.
FULL_SUPPORT = 10.0
"""A gamma that so many warm-up steps agree with is settled: a tenth of the
paper's warm-up, so that up to nine bad first steps are undone."""

_FALL = -math.log(4.0)
"""A step with a lower mean log change is too low. Measured: above log(0.85)."""

_RISE = math.log(10.0)
"""A higher one is too high until gamma is settled. Measured: below log(3.3)."""

_OWN_FALL = 1 / 20
"""A norm below this part of gamma is too low. Three of the proxies' 1,000
tensors fell lower once, to between 1/24 and 1/37."""

_OWN_RISE = 100.0
"""A norm above this multiple is too high, until gamma is settled. An expert of
the proxies rose by a factor of 99."""

PerTensor: TypeAlias = float | Tensor
"""A number for all tensors, or a vector ``[num_tensors]``."""


def square_root(squared_norm: Tensor) -> Tensor:
    """Correctly rounded square root, float32 of the same shape.

    Paddle's float32 square root differs in its last bit between processors, and
    with a value's place in the vector.
    """
    return squared_norm.astype("float64").sqrt().astype("float32")


def global_squared_norm(norm: Tensor) -> Tensor:
    """Squared L2 norm over all tensors whose norm is finite, ``[1]``.

    float64, so that finite entries cannot overflow together.
    """
    finite = paddle.isfinite(norm)
    known = paddle.where(finite, norm, paddle.zeros_like(norm))
    return known.astype("float64").square().sum(keepdim=True)


def global_scale(total: Tensor, lambda_abs: float) -> Tensor:
    """Algorithm 1 line 6: ``min(lambda_abs / ||g||, 1)``, shape ``[1]``."""
    return (lambda_abs / total).clip(max=1.0)


def running_minimum(norm: Tensor, gamma: Tensor) -> Tensor:
    """Algorithm 1 line 9: gamma follows the smallest norm observed so far.

    ``norm`` is that after the clip, ``||h g_i||``.
    """
    return paddle.where(_observed(norm), paddle.minimum(gamma, norm), gamma)


def log_change(norm: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of ``log(||g_i|| / gamma_i)``, and the number of its tensors.

    A tensor that lacks one of the two is left out. Returns two float64
    ``[1]``, to be added up over ranks.
    """
    known = paddle.logical_and(_observed(norm), paddle.isfinite(gamma))
    one = paddle.ones_like(norm)
    logs = [
        paddle.where(known, value, one).astype("float64").log()
        for value in (norm, gamma)
    ]
    change, count = logs[0] - logs[1], known.astype("float64")
    return change.sum(keepdim=True), count.sum(keepdim=True)


def mean_change(total: Tensor, count: Tensor, h: Tensor) -> Tensor:
    """Mean of ``log(||h g_i|| / gamma_i)`` over the model; 0 over nothing.

    ``total`` and ``count`` are the sums of :func:`log_change` over the ranks,
    ``h`` is the global scale, float32 ``[1]``.
    """
    mean = total / count.clip(min=1.0) + h.astype("float64").log()
    return paddle.where(count > 0, mean, paddle.zeros_like(mean))


def supported_minimum(
    norm: Tensor, gamma: Tensor, support: Tensor, change: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`running_minimum` of the steps that most of the warm-up agrees on.

    Not in the paper. As written there, one step in which almost all norms are
    far too small sets gamma for thousands of steps. (One gradient times 1e6
    makes such a step, through the global scale.) So does one small norm for
    its tensor.

    Here a step *agrees* with a tensor's gamma if two norms are in range: the
    geometric mean over all tensors between a quarter and ten times gamma, and
    the tensor's norm between a twentieth and a hundred times gamma. A step that
    agrees enters the minimum and adds 1 to the support of gamma, up to 10. A
    step that disagrees subtracts 1, and replaces gamma once no support is left
    (Boyer and Moore's majority vote). With equal votes the larger norms win.
    Larger norms do not count against a gamma of full support, which is a
    minimum. If no step disagrees, this is :func:`running_minimum`, bit for bit.

    Args:
        norm: Norm to enter, after the clip: ``||h g_i||``.
        gamma: Previous value, ``inf`` where there was none.
        support: Previous value, float32 ``[num_tensors]``, 0 at first.
        change: Result of :func:`mean_change`, ``[1]``.

    Returns:
        New gamma and support.
    """
    is_low, is_high = _disagreement(norm, gamma, change)
    is_high = paddle.logical_and(is_high, support < FULL_SUPPORT)
    entered = paddle.minimum(gamma, norm)
    return _vote(norm, gamma, support, entered, is_low, is_high)


def supported_average(
    norm: Tensor, gamma: Tensor, support: Tensor, change: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """:func:`bounded_average` of the steps that most of the warm-up agrees on.

    Not in the paper. The vote is that of :func:`supported_minimum`, but larger
    norms also count against a gamma of full support. A step that agrees enters
    with at most twice gamma. The arguments are as there, but ``norm`` is that
    before the clip, ``change`` has an ``h`` of 1, and ``beta`` is
    :func:`warmup_beta`. Returns the new gamma and support.
    """
    is_low, is_high = _disagreement(norm, gamma, change)
    entered = bounded_average(norm, gamma, beta, 2.0)
    return _vote(norm, gamma, support, entered, is_low, is_high)


def _disagreement(
    norm: Tensor, gamma: Tensor, change: Tensor
) -> tuple[Tensor, Tensor]:
    """Tell where a step is far too low, and where far too high, for gamma."""
    is_new = paddle.isinf(gamma)
    own_fall = paddle.where(is_new, paddle.zeros_like(gamma), _OWN_FALL * gamma)
    is_low = paddle.logical_or(change < _FALL, norm < own_fall)
    is_high = paddle.logical_or(change > _RISE, norm > _OWN_RISE * gamma)
    return is_low, is_high


def _vote(
    norm: Tensor,
    gamma: Tensor,
    support: Tensor,
    entered: Tensor,
    is_low: Tensor,
    is_high: Tensor,
) -> tuple[Tensor, Tensor]:
    """Count a step for each gamma, or against it; return gamma and support.

    ===========  =====================================  ========================
    the step     gamma                                  support
    ===========  =====================================  ========================
    agrees       ``entered``                            1 more, at most 10
    is too low   ``norm`` if support was 0, else stays  1 less; 1 if replaced
    is too high  ``norm`` if it was 0 or 1, else stays  1 less; 1 if replaced
    ===========  =====================================  ========================

    Too low goes before too high. A step that is too low starts no gamma.
    """
    is_high = paddle.logical_and(is_high, paddle.logical_not(is_low))
    is_low_replaced = paddle.logical_and(support < 1, paddle.isfinite(gamma))
    is_replaced = paddle.logical_or(
        paddle.logical_and(is_low, is_low_replaced),
        paddle.logical_and(is_high, support <= 1),
    )
    agrees = paddle.logical_not(paddle.logical_or(is_low, is_high))
    new = paddle.where(agrees, entered, gamma)
    new = paddle.where(is_replaced, norm, new)
    votes = paddle.where(agrees, support + 1.0, support - 1.0)
    votes = votes.clip(min=0.0, max=FULL_SUPPORT)
    votes = paddle.where(is_replaced, paddle.ones_like(votes), votes)
    observed = _observed(norm)
    return (
        paddle.where(observed, new, gamma),
        paddle.where(observed, votes, support),
    )


def adaptive_scale(
    norm: Tensor, gamma: Tensor, lambda_rel: PerTensor
) -> Tensor:
    """Algorithm 1 line 13: ``min(lambda_rel * gamma_i / ||g_i||, 1)``.

    1 where the norm is zero or gamma is still ``inf``, 0 where the norm is not
    finite.
    """
    h = (lambda_rel * gamma / norm).clip(max=1.0)
    return paddle.where(paddle.isfinite(norm), h, paddle.zeros_like(h))


def between(old: Tensor, new: Tensor, weight: PerTensor) -> Tensor:
    """Return ``(1 - weight) * old + weight * new``, for numbers >= 0.

    The sum begins at the number with the larger weight: the other way round a
    small result would be the difference of two large numbers. Its weights add
    up to exactly 1, which keeps the rounding errors of many steps below 1e-6.

    Args:
        old: Numbers that have the weight ``1 - weight``, float32.
        new: Numbers of the same shape that have the weight ``weight``.
        weight: In [0, 1]: a number, or a tensor of the same shape.

    Returns:
        float32 of the shape of ``old``.
    """
    if not isinstance(weight, Tensor):
        if weight <= 0.5:
            return old + weight * (new - old)
        return new + (1.0 - weight) * (old - new)
    is_small = weight <= 0.5
    near = paddle.where(is_small, old, new)
    far = paddle.where(is_small, new, old)
    weight = paddle.where(is_small, weight, 1.0 - weight)
    return near + weight.astype("float32") * (far - near)


def moving_average(norm: Tensor, gamma: Tensor, beta: PerTensor) -> Tensor:
    """Algorithm 1 line 15: ``beta * gamma_i + (1 - beta) * ||h_i g_i||``.

    ``norm`` is that after the clip, ``||h_i g_i||``. Where gamma is ``inf`` the
    average starts at ``norm``.
    """
    average = between(gamma, norm, 1.0 - beta)
    average = paddle.where(paddle.isfinite(gamma), average, norm)
    return paddle.where(_observed(norm), average, gamma)


def warmup_beta(t_start: int) -> float:
    """Smoothing of the start "warmup_ema": over a tenth of the warm-up.

    A norm enters with at most twice gamma, so it raises gamma by at most
    ``min(10 / t_start, 1)``: 10% in a warm-up of 100 steps, 100% in one of 10.
    """
    return 1.0 - min(10.0 / t_start, 1.0)


def growth_bound(step: int, t_start: int, lambda_rel: PerTensor) -> PerTensor:
    """Norm that enters gamma at most, in units of gamma: start "warmup_ema".

    ``max(lambda_rel, 1 + t_start / t)``: 2 at the end of the warm-up. gamma may
    then grow in proportion to the number of steps, until Algorithm 1 allows
    more: from ``t = t_start / (lambda_rel - 1)`` on, and never if
    ``lambda_rel`` is 1 or less.
    """
    start = 1.0 + t_start / step if step else 1.0
    if isinstance(lambda_rel, Tensor):
        return lambda_rel.clip(min=start)
    return max(lambda_rel, start)


def bounded_average(
    norm: Tensor, gamma: Tensor, beta: PerTensor, bound: PerTensor
) -> Tensor:
    """:func:`moving_average` of ``min(||g_i||, bound * gamma_i)``.

    ``norm`` is that before the clip. With ``bound`` = ``lambda_rel`` this is
    Algorithm 1 line 15.
    """
    fed = paddle.minimum(norm, bound * gamma)
    average = moving_average(fed, gamma, beta)
    return paddle.where(paddle.isfinite(norm), average, gamma)


def _observed(norm: Tensor) -> Tensor:
    return paddle.logical_and(paddle.isfinite(norm), norm > 0)
