# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Global AdaGC: the paper's ablation of locality."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.checks import check_decay, check_integer, check_positive
from paddle_adagc.clips.global_norm import GlobalNormClip
from paddle_adagc.clips.memory import Kept
from paddle_adagc.clips.nonfinite import NonFinite
from paddle_adagc.state import Quantity


class ClipGradByGlobalAdaGC(GlobalNormClip):
    """AdaGC's rule with one gamma on the norm over all tensors.

    Adaptive but not local: the variant that the paper's ablation ("Adaptivity
    Efficacy and Locality Granularity") compares AdaGC with. Arguments, warm-up,
    and the treatment of non-finite gradients are those of
    :class:`paddle_adagc.ClipGradByAdaGC` with ``strict=True``; gamma stays in a
    step that has one.
    """

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
        self.lambda_rel = check_positive("lambda_rel", lambda_rel)
        self.lambda_abs = check_positive("lambda_abs", lambda_abs)
        self.beta = check_decay("beta", beta)
        self.t_start = check_integer("t_start", t_start, 0)
        self.num_warmup_steps = self.t_start
        self._keep(
            Quantity(
                name="gamma", start=math.inf, is_global=True, is_positive=True
            )
        )

    def _config(self) -> dict[str, Any]:
        return {
            "lambda_rel": self.lambda_rel,
            "beta": self.beta,
            "lambda_abs": self.lambda_abs,
            "t_start": self.t_start,
            **super()._config(),
        }

    def _advance(
        self, step: int, norm: Tensor, kept: Kept
    ) -> tuple[Tensor, Kept]:
        total, is_whole = self._observed_norm(norm)
        gamma = kept["gamma"]
        if step < self.t_start:
            h = rule.global_scale(total, self.lambda_abs)
            new = rule.running_minimum(h * total, gamma)
        else:
            h = rule.adaptive_scale(total, gamma, self.lambda_rel)
            new = rule.moving_average(h * total, gamma, self.beta)
        new = paddle.where(is_whole, new, gamma)
        return h.expand_as(norm), {"gamma": new}
