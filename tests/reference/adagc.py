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


def robust_step(t, grads, gamma, outliers, lambda_abs, t_start):
    """The robust preset: lambda_rel 2, beta 0.99, and few outliers doubted.

    ``outliers`` is a list of floats. Gives the clipped arrays, new gamma and
    new outliers.
    """
    clipped, new_gamma = adagc_step(
        t, grads, gamma, 2.0, 0.99, lambda_abs, t_start
    )
    if t < t_start or gamma is None:
        return clipped, new_gamma, outliers
    passed, new_outliers = [], []
    for g, g_hat, count in zip(grads, clipped, outliers, strict=True):
        h = np.linalg.norm(g_hat) / np.linalg.norm(g)
        doubt = min(max(9.0 - count, 0.0), 1.0)
        passed.append(doubt * h**4 * g + (1.0 - doubt) * h * g)
        new_outliers.append(0.98 * count + 1.0 - h**4)
    return passed, new_gamma, new_outliers


def voted_warm_up(steps, lambda_abs):
    """Gammas after each warm-up step of norms ``[num_tensors]``, by votes.

    A zero or non-finite norm is no observation.
    """
    size = len(steps[0])
    gamma, support = np.full(size, np.inf), np.zeros(size)
    history = []
    for norm in steps:
        seen = [i for i in range(size) if 0 < norm[i] < np.inf]
        known = [i for i in seen if gamma[i] < np.inf]
        total = np.sqrt(sum(norm[i] ** 2 for i in seen))
        h = min(lambda_abs / total, 1.0) if seen else 1.0
        ratios = [h * norm[i] / gamma[i] for i in known]
        change = np.exp(np.mean(np.log(ratios))) if known else 1.0
        for i in seen:
            x = h * norm[i]
            own = x / gamma[i] if i in known else 1.0
            if change < 0.25 or own < 0.05:
                support[i] -= 1
                if i in known and support[i] < 0:
                    gamma[i], support[i] = x, 1
                support[i] = max(support[i], 0)
            elif (change > 10 or own > 100) and support[i] < 10:
                support[i] -= 1
                if support[i] <= 0:
                    gamma[i], support[i] = x, 1
            else:
                gamma[i] = min(gamma[i], x)
                support[i] = min(support[i] + 1, 10)
        history.append(gamma.copy())
    return np.array(history)


def adagc_with_deviations_step(
    t,
    norms,
    gamma,
    deviation,
    lambda_rel,
    beta,
    lambda_abs,
    t_start,
    lambda_dev,
):
    """Clipped norms, with a margin of ``lambda_dev`` mean deviations.

    ``gamma`` and ``deviation`` are lists; None before the first step.
    """
    h = np.full(len(norms), min(lambda_abs / np.linalg.norm(norms), 1.0))
    if t < t_start:
        clipped = h * norms
        new = clipped if gamma is None else np.minimum(gamma, clipped)
    elif gamma is None:
        clipped = new = norms
    else:
        margin = np.maximum(lambda_rel * gamma, gamma + lambda_dev * deviation)
        clipped = np.minimum(norms, margin)
        new = beta * gamma + (1 - beta) * clipped
    if gamma is None:
        return clipped, new, np.zeros(len(norms))
    change = np.abs(clipped - gamma)
    return clipped, new, beta * deviation + (1 - beta) * change
