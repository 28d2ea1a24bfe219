# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The optimizers to the letter of their papers, in float64, slowly.

Each object holds one tensor's state; ``step`` takes its weight and gradient and
gives the new weight. Arguments have the names that ours have.
"""

from types import SimpleNamespace

import numpy as np
from reference.clips import agc_tensor


class Lion(SimpleNamespace):
    """Chen et al. 2023, algorithm 2."""

    m = 0.0

    def step(self, w, g):
        c = self.beta1 * self.m + (1 - self.beta1) * g
        self.m = self.beta2 * self.m + (1 - self.beta2) * g
        return w - self.lr * (np.sign(c) + self.weight_decay * w)


class AdamW(SimpleNamespace):
    """Loshchilov and Hutter 2019, algorithm 2; others override its parts."""

    t, m, v = 0, 0.0, 0.0

    def direction(self, g):
        """Adam's update before the learning rate."""
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g * g
        m_hat = self.m / (1 - self.beta1**self.t)
        self.v_hat = self.v / (1 - self.beta2**self.t)
        return m_hat / (np.sqrt(self.v_hat) + self.epsilon)

    def step(self, w, g):
        return w - self.lr * (self.direction(g) + self.weight_decay * w)


def newton_schulz(matrix, num_iterations):
    """Jordan et al. 2024, on ``[out, in]`` or its transpose alike."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / max(np.linalg.norm(matrix), 1e-7)
    for _ in range(num_iterations):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


class Muon(AdamW):
    """Jordan et al. 2024, on a weight of Paddle's shape ``[in, out]``."""

    beta1, beta2, epsilon = 0.9, 0.95, 1e-8  # of a vector's AdamW

    def step(self, w, g):
        if w.ndim != 2:
            return super().step(w, g)
        self.m = self.m + (1 - self.momentum) * (g - self.m)
        u = g + self.momentum * (self.m - g) if self.nesterov else self.m
        size_in, size_out = w.shape
        if self.scaling == "spectral":
            scale = max(1.0, size_out / size_in) ** 0.5
        else:
            scale = 0.2 * max(size_in, size_out) ** 0.5
        update = newton_schulz(u.T, self.num_iterations).T  # as [out, in]
        return w - self.lr * (scale * update + self.weight_decay * w)


class StableAdamW(AdamW):
    """Wortsman et al. 2023, algorithm 2."""

    def step(self, w, g):
        direction = self.direction(g)
        ratio = g * g / np.maximum(self.v_hat, self.epsilon**2)
        lr = self.lr / max(1.0, np.sqrt(np.mean(ratio)))
        return w - lr * self.weight_decay * w - lr * direction


class SPAM(AdamW):
    """Huang et al. 2025, algorithm 1 with the authors' schedule."""

    def step(self, w, g):
        t = self.t + 1
        since_reset = t % self.reset_interval
        if t == 1 or since_reset == 0:
            self.m = self.v = np.zeros_like(g)
        if since_reset >= self.clip_start:
            g = g.copy()
            for j in np.ndindex(g.shape):
                bound = self.threshold * self.v[j]
                if self.v[j] > 0 and g[j] ** 2 > bound:
                    g[j] = np.sign(g[j]) * np.sqrt(bound)
        scale = 1.0
        if t >= self.reset_interval and since_reset < self.warmup_steps:
            cosine = np.cos(np.pi * since_reset / (self.warmup_steps + 1))
            scale = 1 - 0.99 * (1 + cosine) / 2
        decayed = w - self.lr * self.weight_decay * w
        return decayed - self.lr * scale * self.direction(g)


class ClippedAdamW(AdamW):
    """AdamW whose update :attr:`clip` changes."""

    def step(self, w, g):
        update = self.clip(self.direction(g), w, self.lr)
        return w - self.lr * (update + self.weight_decay * w)


def agc(lambda_rel, epsilon, is_embedding, update, w, lr):
    """AGC on the update, whatever the learning rate."""
    return agc_tensor(update, w, lambda_rel, epsilon, is_embedding)


def clippy(lambda_rel, lambda_abs, update, w, lr):
    """Tang et al. 2023, algorithm 2."""
    sigma = 1.0
    for j in np.ndindex(w.shape):
        if update[j] != 0:
            bound = lambda_rel * abs(w[j]) + lambda_abs
            sigma = min(sigma, bound / (lr * abs(update[j])))
    return sigma * update


def clippy_of_paper(lambda_rel, lambda_abs, update, w, lr):
    """The AdaGC paper's table of methods."""
    bound = lambda_rel * np.abs(w).max() + lambda_abs
    return min(1.0, bound / (lr * np.abs(update).max())) * update
