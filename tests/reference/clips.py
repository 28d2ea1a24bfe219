# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The float64 twin of every rule in the registry, slowly, with its defaults.

They follow the letter of docs/training.md. A twin is called once per
step with the weights and the gradients (lists of float64 arrays), and returns
the clipped gradients.
"""

import numpy as np
from reference.adagc import adagc_step

_ADAGC = {"lambda_rel": 1.04, "beta": 0.99, "lambda_abs": 1.0, "t_start": 100}


def bounded(grads, bound):
    """Arrays whose joint norm is at most the bound."""
    norm = np.sqrt(sum(np.sum(g * g) for g in grads))
    return [g * min(1.0, bound / norm) if norm > 0 else g for g in grads]


class AdaGC:
    """Algorithm 1 per tensor."""

    def __init__(self, **arguments):
        self.step, self.gamma = 0, None
        self.arguments = {**_ADAGC, **arguments}

    def __call__(self, weights, grads):
        clipped, self.gamma = adagc_step(
            self.step, grads, self.gamma, **self.arguments
        )
        self.step += 1
        return clipped


class GlobalAdaGC(AdaGC):
    """Algorithm 1 on one tensor that holds all gradients."""

    def __call__(self, weights, grads):
        flat = np.concatenate([g.reshape(-1) for g in grads])
        (clipped,) = super().__call__(weights, [flat])
        ends = np.cumsum([g.size for g in grads])[:-1]
        parts = np.split(clipped, ends)
        return [p.reshape(g.shape) for p, g in zip(parts, grads, strict=True)]


class ZClip:
    """ZClip with a buffer of the warm-up's norms."""

    def __init__(
        self, alpha=0.97, z_thres=2.5, max_grad_norm=1.0, warmup_steps=25
    ):
        self.alpha, self.z_thres = alpha, z_thres
        self.max_grad_norm, self.warmup_steps = max_grad_norm, warmup_steps
        self.buffer = []
        self.mu = self.var = None

    def __call__(self, weights, grads):
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
        return bounded(grads, bound)


class SkipStep:
    """The norms before this step in a list."""

    def __init__(self, sigma=6.0, window=128, max_grad_norm=1.0):
        self.sigma, self.window = sigma, window
        self.max_grad_norm = max_grad_norm
        self.past = []

    def __call__(self, weights, grads):
        n = np.sqrt(sum(np.sum(g * g) for g in grads))
        past = self.past[-self.window :]
        self.past.append(n)
        is_known = len(past) >= max(2, self.window // 2)
        if is_known and n > np.mean(past) + self.sigma * np.std(past, ddof=1):
            return [0 * g for g in grads]
        bound = n if self.max_grad_norm is None else self.max_grad_norm
        return bounded(grads, bound)


class GradientStabilizer:
    """Two moving averages of each tensor's norm, corrected like Adam's."""

    def __init__(self, gamma1=0.7, gamma2=0.9):
        self.gamma1, self.gamma2 = gamma1, gamma2
        self.state = {}

    def __call__(self, weights, grads):
        clipped = []
        for i, g in enumerate(grads):
            n = np.linalg.norm(g)
            if n == 0:
                clipped.append(g)
                continue
            m, v, t = self.state.get(i, (0.0, 0.0, 0))
            m = self.gamma1 * m + (1 - self.gamma1) * n
            v = self.gamma2 * v + (1 - self.gamma2) * n**2
            self.state[i] = m, v, t + 1
            m = m / (1 - self.gamma1 ** (t + 1))
            v = v / (1 - self.gamma2 ** (t + 1))
            clipped.append(g / n * m / (np.sqrt(v) + 1e-8))
        return clipped


def _tensor_wise(lambda_abs=1.0):
    def step(weights, grads):
        total = sum(g.size for g in grads)
        shares = [lambda_abs * g.size / total for g in grads]
        return [bounded([g], x)[0] for g, x in zip(grads, shares, strict=True)]

    return step


def agc_units(array, is_embedding=False):
    """Index of every unit of an array."""
    if array.ndim <= 1:
        return [...]
    if array.ndim == 2 and not is_embedding:
        return [np.s_[:, unit] for unit in range(array.shape[1])]
    return [np.s_[unit] for unit in range(array.shape[0])]


def agc_tensor(value, weight, lambda_rel, epsilon, is_embedding=False):
    """AGC of one tensor: Brock et al. 2021, equation 3."""
    clipped = value.copy()
    for unit in agc_units(weight, is_embedding):
        bound = lambda_rel * max(np.linalg.norm(weight[unit]), epsilon)
        norm = np.linalg.norm(value[unit])
        if norm > bound:
            clipped[unit] = value[unit] * bound / max(norm, 1e-6)
    return clipped


def agc(lambda_rel=0.01, epsilon=1e-3, embeddings=()):
    """AGC; ``embeddings``: indices of embedding tables."""
    return lambda weights, grads: [
        agc_tensor(g, w, lambda_rel, epsilon, i in embeddings)
        for i, (w, g) in enumerate(zip(weights, grads, strict=True))
    ]


TWINS = {
    "adagc": AdaGC,
    "global_norm": lambda: lambda _, grads: bounded(grads, 1.0),
    "value": lambda: lambda _, grads: [np.clip(g, -1e-3, 1e-3) for g in grads],
    "none": lambda: lambda _, grads: grads,
    "agc": agc,
    "zclip": ZClip,
    "global_adagc": GlobalAdaGC,
    "tensor_wise": _tensor_wise,
    "skip_step": SkipStep,
    "gradient_stabilizer": GradientStabilizer,
}
"""Name in the registry -> maker of the twin."""
