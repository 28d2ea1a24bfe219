# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the answers in cases.json are: Algorithm 1, one clause after the other.

The algorithm stands in the appendix of arXiv 2502.11034. The gradients have
chosen norms and random directions. A new case gets its answers from here, with
eight digits.
"""

import math

import numpy as np


def adagc(arguments, steps):
    """What each step gives: h and gamma. What comes out is ``h g``.

    Gradients are float64 arrays by name; None is a missing one. A norm that is
    zero or not finite is no observation, and a gradient that is not finite
    becomes zero. A tensor without gamma after the warm-up starts from its norm.
    """
    gamma, answers = {}, []
    for t, gradients in enumerate(steps):
        norms = {
            name: np.sqrt(np.sum(g * g))
            for name, g in gradients.items()
            if g is not None
        }
        seen = {n: x for n, x in norms.items() if 0 < x < math.inf}
        is_warm_up = t < arguments["t_start"]
        total = math.sqrt(sum(x * x for x in seen.values()))  # line 6
        h = {}
        for name, norm in norms.items():
            if name not in seen:
                h[name] = 1.0 if norm == 0 else 0.0
                continue
            known = gamma.get(name, math.inf)
            if is_warm_up:
                h[name] = min(arguments["lambda_abs"] / total, 1.0)
                gamma[name] = min(known, h[name] * norm)  # line 9
                continue
            h[name] = min(arguments["lambda_rel"] * known / norm, 1.0)  # 13
            if math.isinf(known):
                known = norm
            beta = arguments["beta"]
            gamma[name] = beta * known + (1 - beta) * h[name] * norm  # 15
        answers.append({"h": h, "gamma": {**gamma}})
    return answers
