# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC with the starts of gamma that the paper's ablation compares."""

from __future__ import annotations

import math
from typing import Literal, get_args

import paddle
from paddle import Tensor

from adagc_lab.clips.compared import ComparedClip
from paddle_adagc import rule
from paddle_adagc.checks import (
    check_choice,
    check_decay,
    check_integer,
    check_positive,
)

Start = Literal["lambda_abs", "min_no_warmup", "constant", "threshold"]
STARTS = get_args(Start)
_INIT_VALUE = {"constant": 1.0, "threshold": 0.1}


class AdaGCStart(ComparedClip):
    """AdaGC, gamma starting otherwise than after the paper's warm-up.

    Args:
        lambda_rel: As of :class:`paddle_adagc.ClipGradByAdaGC`; so are
            ``beta``, ``lambda_abs`` and ``t_start``.
        init: The first is not the paper's.

            - ``"lambda_abs"``: at ``lambda_abs``, the largest norm that the
              warm-up, GlobalGC, lets through.
            - ``"min_no_warmup"``: smallest norm of the first ``t_start`` steps,
              whose gradients are not clipped.
            - ``"constant"``: ``init_value`` (0.5 and 1.0 in the paper). The
              adaptive rule applies from the first step on.
            - ``"threshold"``: ``min(||g_i||, init_value)`` of the latest of the
              first ``t_start`` steps, whose gradients are not clipped.
        init_value: For ``"constant"`` (default 1.0) and ``"threshold"``
            (default 0.1, the paper's).
    """

    def __init__(
        self,
        *,
        lambda_rel: float = 1.04,
        beta: float = 0.99,
        lambda_abs: float = 1.0,
        t_start: int = 100,
        init: Start = "min_no_warmup",
        init_value: float | None = None,
    ) -> None:
        self.lambda_rel = check_positive("lambda_rel", lambda_rel)
        self.beta = check_decay("beta", beta)
        self.lambda_abs = check_positive("lambda_abs", lambda_abs)
        self.init = check_choice("init", init, STARTS)
        self.t_start = check_integer("t_start", t_start, init == "threshold")
        default = _INIT_VALUE.get(init)
        if init_value is not None and default is None:
            raise ValueError(
                f"init_value={init_value!r} has no meaning with init={init!r}"
            )
        if init_value is not None:
            default = check_positive("init_value", init_value)
        self.init_value = default or math.inf
        start = self.init_value if init == "constant" else math.inf
        self.vectors = {"gamma": start}
        super().__init__()

    def advance(self, norm: Tensor) -> Tensor:
        """Apply Algorithm 1, from the step on in which it begins."""
        gamma = self.state["gamma"]
        h, warm_up = paddle.ones_like(norm), self.num_steps < self.t_start
        if self.init == "constant" or not warm_up:
            if self.init == "lambda_abs":  # what has no gamma so far
                start = paddle.full_like(gamma, self.lambda_abs)
                gamma = paddle.where(paddle.isinf(gamma), start, gamma)
            h = rule.adaptive_scale(norm, gamma, self.lambda_rel)
            gamma = rule.moving_average(h * norm, gamma, self.beta)
        elif self.init == "lambda_abs":
            total = rule.global_squared_norm(norm).sqrt().astype("float32")
            h = rule.global_scale(total, self.lambda_abs).expand_as(norm)
            gamma = paddle.full_like(gamma, self.lambda_abs)
        elif self.init == "min_no_warmup":
            gamma = rule.running_minimum(norm, gamma)
        else:
            seen = paddle.logical_and(paddle.isfinite(norm), norm > 0)
            gamma = paddle.where(seen, norm.clip(max=self.init_value), gamma)
        self.state["gamma"] = gamma
        return h
