# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The float64 twin of every rule in the registry, with the same defaults.

A twin is called once per step with the weights and the gradients (lists of
float64 arrays), and returns the clipped gradients.
"""

import numpy as np
from reference.adagc import adagc_step
from reference.clips import ZClip, agc_step, tensor_wise_step

_ADAGC = {"lambda_rel": 1.04, "beta": 0.99, "lambda_abs": 1.0, "t_start": 100}


class AdaGC:
    """Algorithm 1 per tensor."""

    def __init__(self, **arguments):
        self.step, self.gamma = 0, None
        self.arguments = {**_ADAGC, **arguments}

    def __call__(self, weights, grads):
        """One step."""
        clipped, self.gamma = adagc_step(
            self.step, grads, self.gamma, **self.arguments
        )
        self.step += 1
        return clipped


class GlobalAdaGC(AdaGC):
    """Algorithm 1 on one tensor that holds all gradients."""

    def __call__(self, weights, grads):
        """One step."""
        flat = np.concatenate([g.reshape(-1) for g in grads])
        (clipped,) = super().__call__(weights, [flat])
        ends = np.cumsum([g.size for g in grads])[:-1]
        parts = np.split(clipped, ends)
        return [p.reshape(g.shape) for p, g in zip(parts, grads, strict=True)]


def _global_norm(weights, grads):
    norm = np.sqrt(sum(np.sum(g * g) for g in grads))
    return [g * min(1.0, 1.0 / norm) for g in grads]


def _agc(lambda_rel=0.01, epsilon=1e-3):
    return lambda weights, grads: agc_step(weights, grads, lambda_rel, epsilon)


def _tensor_wise(lambda_abs=1.0, share="size"):
    return lambda weights, grads: tensor_wise_step(grads, lambda_abs, share)


def _zclip(alpha=0.97, z_thres=2.5, max_grad_norm=1.0, warmup_steps=25):
    twin = ZClip(alpha, z_thres, max_grad_norm, warmup_steps)
    return lambda weights, grads: twin.step(grads)


TWINS = {
    "adagc": AdaGC,
    "global_norm": lambda: _global_norm,
    "value": lambda: lambda _, grads: [np.clip(g, -1e-3, 1e-3) for g in grads],
    "none": lambda: lambda _, grads: grads,
    "agc": _agc,
    "zclip": _zclip,
    "global_adagc": GlobalAdaGC,
    "tensor_wise": _tensor_wise,
}
"""Name in the registry -> maker of the twin."""
