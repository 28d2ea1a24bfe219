# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Global AdaGC: the paper's ablation of locality."""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.checks import check_decay, check_integer, check_positive
from paddle_adagc.clips.base import NonFinite
from paddle_adagc.clips.global_norm import GlobalNormClip
from paddle_adagc.state import Values, check_gamma

_KEY = "global"


class ClipGradByGlobalAdaGC(GlobalNormClip):
    """AdaGC's rule with one gamma on the norm over all tensors.

    Adaptive but not local: the variant that the paper's ablation ("Adaptivity
    Efficacy and Locality Granularity") compares AdaGC with. Arguments, warm-up,
    and what becomes of non-finite gradients are those of
    :class:`paddle_adagc.ClipGradByAdaGC`; gamma stays in a step that has one.
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
        self._gamma: Tensor = paddle.full([1], math.inf)

    def _config(self) -> dict[str, Any]:
        return {
            "lambda_rel": self.lambda_rel,
            "beta": self.beta,
            "lambda_abs": self.lambda_abs,
            "t_start": self.t_start,
            **super()._config(),
        }

    def _advance(self, step: int, norm: Tensor) -> Tensor:
        total, is_whole = self._observed_norm(norm)
        if step < self.t_start:
            h = rule.global_scale(total, self.lambda_abs)
            gamma = rule.running_minimum(h * total, self._gamma)
        else:
            h = rule.adaptive_scale(total, self._gamma, self.lambda_rel)
            gamma = rule.moving_average(h * total, self._gamma, self.beta)
        self._gamma = paddle.where(is_whole, gamma, self._gamma)
        return h.expand_as(norm)

    def _tensor_metrics(self) -> dict[str, Tensor]:
        return {"gamma": self._gamma.expand([len(self._table)])}

    def _state(self) -> dict[str, dict[str, Tensor]]:
        return {"gamma": {_KEY: self._gamma.reshape([])}}

    def _load(self, values: Values) -> None:
        gamma = values["gamma"]
        if list(gamma) != [_KEY]:
            raise ValueError(
                f"the state holds gamma of {list(gamma)[:3]}, not of "
                f"{_KEY!r} alone: it is not a state of Global AdaGC"
            )
        check_gamma(gamma)
        self._gamma = paddle.to_tensor([gamma[_KEY]], "float32")
