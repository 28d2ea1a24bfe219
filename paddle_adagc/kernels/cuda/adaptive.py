# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The adaptive step of Algorithm 1 in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import paddle
from paddle import Tensor

from paddle_adagc.kernels.cuda import tensors
from paddle_adagc.kernels.cuda.tables import Rule, launch_adaptive_step
from paddle_adagc.kernels.facts import describe


class AdaptiveStep(NamedTuple):
    """Result of the rule, each ``[num_tensors]``, float32 unless said."""

    norm: Tensor
    h: Tensor
    gamma: Tensor
    deviation: Tensor | None
    outliers: Tensor | None
    lost: Tensor | None
    """bool; whose gradient becomes 0."""

    num_nonfinite: Tensor
    """int32."""


def adaptive_step(
    squared_norm: Tensor,
    gamma: Tensor,
    deviation: Tensor | None,
    outliers: Tensor | None,
    num_nonfinite: Tensor,
    *,
    lambda_rel: float,
    beta: float,
    lambda_dev: float,
    zeroes_nonfinite: bool,
) -> AdaptiveStep | None:
    """Apply :mod:`paddle_adagc.rule` on the current NVIDIA GPU, with its bits.

    Args:
        squared_norm: float32 ``[num_tensors]``.
        gamma: float32 ``[num_tensors]``.
        deviation: float32 ``[num_tensors]``; None without ``lambda_dev``.
        outliers: float32 ``[num_tensors]``; None without the robust preset.
        num_nonfinite: int32 ``[num_tensors]``; how often each norm was not
            finite.
        lambda_rel: See :mod:`paddle_adagc.rule`.
        beta: See :mod:`paddle_adagc.rule`.
        lambda_dev: See :mod:`paddle_adagc.rule`.
        zeroes_nonfinite: A tensor with a non-finite norm is ``lost``; else its
            ``h`` is 1.

    Returns:
        New vectors; None if this is no NVIDIA GPU, has no kernels, or a vector
        is of no tensors or lies elsewhere: Paddle's operators then move it.
    """
    device = tensors.current_device()
    module = None if device is None else tensors.load_module(device)
    kept = (squared_norm, gamma, deviation, outliers, num_nonfinite)
    if device is None or module is None or not _lie_there(kept):
        return None
    norm, h, new_gamma = (paddle.empty_like(gamma) for _ in range(3))
    new_deviation, new_outliers = (
        None if old is None else paddle.empty_like(old)
        for old in (deviation, outliers)
    )
    lost = paddle.empty(gamma.shape, "bool") if zeroes_nonfinite else None
    count = paddle.empty_like(num_nonfinite)
    vectors = (
        *(gamma, deviation, outliers, norm, h),
        *(new_gamma, new_deviation, new_outliers),
        *(lost, num_nonfinite, count),
    )
    launch_adaptive_step(
        module,
        tensors.current_stream(device),
        gamma.shape[0],
        Rule(
            lambda_rel,
            beta,
            1.0 - beta,
            lambda_dev,
            0.0 if zeroes_nonfinite else 1.0,
        ),
        squared_norm.data_ptr(),
        [None if vector is None else vector.data_ptr() for vector in vectors],
    )
    return AdaptiveStep(
        norm, h, new_gamma, new_deviation, new_outliers, lost, count
    )


def _lie_there(vectors: Sequence[Tensor | None]) -> bool:
    """Whether all vectors hold something and lie on the current GPU."""
    known = [vector for vector in vectors if vector is not None]
    facts = describe(known)
    return bool(
        (facts["device"] == tensors.current_memory()).all()
        and (facts["size"] > 0).all()
    )
