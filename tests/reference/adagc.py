# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the AdaGC paper, line by line, in NumPy float64."""

import numpy as np


def adagc_step(t, grads, gamma, lambda_rel, beta, lambda_abs, t_start):
    """One step on a list of arrays; gives the clipped arrays and new gamma.

    ``gamma`` is a list of floats, or None before the first step.
    """
    grads = [np.asarray(g, np.float64) for g in grads]
    if gamma is None and t_start == 0:
        return grads, [np.linalg.norm(g) for g in grads]
    clipped, new_gamma = [], []
    if t < t_start:
        g_norm = np.sqrt(sum(np.sum(g * g) for g in grads))
        h = min(lambda_abs / g_norm, 1.0) if g_norm > 0 else 1.0
        for i, g in enumerate(grads):
            g_hat = h * g
            norm = np.linalg.norm(g_hat)
            if gamma is None:
                new_gamma.append(norm)
            else:
                new_gamma.append(min(gamma[i], norm))
            clipped.append(g_hat)
    else:
        for i, g in enumerate(grads):
            h = min(lambda_rel * gamma[i] / np.linalg.norm(g), 1.0)
            g_hat = h * g
            norm = np.linalg.norm(g_hat)
            new_gamma.append(beta * gamma[i] + (1.0 - beta) * norm)
            clipped.append(g_hat)
    return clipped, new_gamma


def voted_warm_up(steps, lambda_abs, t_start=None):
    """Gammas after each warm-up step of norms ``[num_tensors]``, by votes.

    With ``t_start`` that of the start "warmup_ema". A zero or non-finite norm
    is no observation.
    """
    size = len(steps[0])
    gamma, support = np.full(size, np.inf), np.zeros(size)
    history = []
    for norm in steps:
        norm = np.asarray(norm, np.float64)
        seen = [i for i in range(size) if 0 < norm[i] < np.inf]
        known = [i for i in seen if gamma[i] < np.inf]
        total = np.sqrt(sum(norm[i] ** 2 for i in seen))
        x = norm
        if t_start is None:
            x = (min(lambda_abs / total, 1.0) if seen else 1.0) * norm
        ratios = [x[i] / gamma[i] for i in known]
        change = np.exp(np.mean(np.log(ratios))) if known else 1.0
        for i in seen:
            own = x[i] / gamma[i] if i in known else 1.0
            settled = t_start is None and support[i] == 10
            if change < 0.25 or own < 0.05:
                support[i] -= 1
                if i in known and support[i] < 0:
                    gamma[i], support[i] = x[i], 1
                support[i] = max(support[i], 0)
            elif (change > 10 or own > 100) and not settled:
                support[i] -= 1
                if support[i] <= 0:
                    gamma[i], support[i] = x[i], 1
            else:
                if t_start is None or i not in known:
                    gamma[i] = min(gamma[i], x[i])
                else:
                    weight = min(10 / t_start, 1)
                    gamma[i] += weight * (min(x[i], 2 * gamma[i]) - gamma[i])
                support[i] = min(support[i] + 1, 10)
        history.append(gamma.copy())
    return np.array(history)


def warmup_ema(steps, lambda_rel, beta, lambda_abs, t_start):
    """The start "warmup_ema": h and gamma of every step, from the norms."""
    history = [*voted_warm_up(steps[:t_start], lambda_abs, t_start)]
    scales = []
    for norm in steps[:t_start]:
        h = min(lambda_abs / np.sqrt(np.sum(np.square(norm))), 1.0)
        scales.append(np.full(len(norm), h))
    gamma = history[-1] if history else np.full(len(steps[0]), np.inf)
    for t, norm in enumerate(steps[t_start:], t_start):
        norm = np.asarray(norm, np.float64)
        scales.append(np.minimum(lambda_rel * gamma / norm, 1.0))
        bound = max(lambda_rel, 1 + t_start / t) if t else lambda_rel
        fed = np.minimum(norm, bound * gamma)
        known = np.isfinite(gamma)
        gamma = np.where(known, beta * gamma + (1 - beta) * fed, norm)
        history.append(gamma)
    return np.array(scales), np.array(history)
