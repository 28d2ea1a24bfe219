# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compared clips to the letter of baselines.md, in float64, slowly."""

import numpy as np


def tensor_wise_step(grads, lambda_abs, share="size"):
    """TensorWiseGC on a list of arrays."""
    total = sum(g.size for g in grads)
    out = []
    for g in grads:
        part = g.size / total
        bound = lambda_abs * (part if share == "size" else np.sqrt(part))
        norm = np.linalg.norm(g)
        out.append(g * min(1.0, bound / norm) if norm > 0 else g)
    return out


class ZClip:
    """ZClip with a buffer of the warm-up's norms."""

    def __init__(self, alpha, z_thres, max_grad_norm, warmup_steps):
        self.alpha, self.z_thres = alpha, z_thres
        self.max_grad_norm, self.warmup_steps = max_grad_norm, warmup_steps
        self.buffer = []
        self.mu = self.var = None

    def step(self, grads):
        """One step on a list of arrays."""
        n = np.sqrt(sum(np.sum(g * g) for g in grads))
        x = n
        if self.mu is None:
            self.buffer.append(n)
            if len(self.buffer) == self.warmup_steps:
                self.mu, self.var = np.mean(self.buffer), np.var(self.buffer)
        else:
            s = np.sqrt(self.var)
            z = (n - self.mu) / (s + 1e-6)
            if z > self.z_thres:
                x = self.mu + self.z_thres * s / (z / self.z_thres)
            self.mu = self.alpha * self.mu + (1 - self.alpha) * x
            self.var = (
                self.alpha * self.var + (1 - self.alpha) * (x - self.mu) ** 2
            )
        bound = x if self.max_grad_norm is None else min(x, self.max_grad_norm)
        return [g * min(1.0, bound / n) for g in grads]


def agc_units(array, is_embedding=False):
    """Index of every unit of an array."""
    if array.ndim <= 1:
        return [...]
    if array.ndim == 2 and not is_embedding:
        return [np.s_[:, unit] for unit in range(array.shape[1])]
    return [np.s_[unit] for unit in range(array.shape[0])]


def agc_step(weights, grads, lambda_rel, epsilon, embeddings=()):
    """AGC on lists of arrays; ``embeddings``: indices of embedding tables."""
    out = []
    for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
        g = g.copy()
        for unit in agc_units(g, i in embeddings):
            bound = lambda_rel * max(np.linalg.norm(w[unit]), epsilon)
            norm = np.linalg.norm(g[unit])
            if norm > bound:
                g[unit] = g[unit] * bound / max(norm, 1e-6)
        out.append(g)
    return out
