# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC for PyTorch, one process: Algorithm 1 of arXiv 2502.11034.

    clip = AdaGC(model.named_parameters())
    loss.backward()
    clip.step()
    optimizer.step()

tests/conformance holds it against the paper's rule.
"""

import math

import torch


class AdaGC:
    """Clip each parameter's gradient by its own usual norm, in place.

    Nothing waits for the device. A zero or non-finite norm is no observation;
    a gradient with Inf or NaN becomes 0.

    Args:
        named_parameters: As ``model.named_parameters()`` gives them.
        lambda_rel: Threshold after the warm-up, relative to gamma.
        beta: Smoothing of gamma.
        lambda_abs: Threshold of the global norm in the warm-up.
        t_start: Steps of the warm-up.
        init: How gamma starts: ``"warmup_min"`` with the smallest clipped norm
            of the warm-up, as in the paper; ``"warmup_ema"`` with a moving
            average of the norms, which may grow faster at first.
    """

    def __init__(
        self,
        named_parameters,
        lambda_rel=1.04,
        beta=0.99,
        lambda_abs=1.0,
        t_start=100,
        init="warmup_min",
    ):
        self.names, self.parameters = zip(*named_parameters, strict=True)
        self.lambda_rel, self.beta, self.lambda_abs = (
            lambda_rel,
            beta,
            lambda_abs,
        )
        self.t_start, self.init, self.t = t_start, init, 0
        device = self.parameters[0].device
        self.gamma = torch.full([len(self.names)], math.inf, device=device)

    def state_dict(self):
        """Return the number of steps, and gamma by name."""
        gamma = dict(zip(self.names, self.gamma.tolist(), strict=True))
        return {"t": self.t, "gamma": gamma}

    def load_state_dict(self, state):
        """Continue where the state was taken."""
        self.t = state["t"]
        gamma = [state["gamma"][name] for name in self.names]
        self.gamma = self.gamma.new_tensor(gamma)

    @torch.no_grad()
    def step(self):
        """Clip the gradients; returns h, float32 ``[num_parameters]``."""
        known = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        if not known:
            raise RuntimeError("no parameter has a gradient: call backward()")
        grads = [self.parameters[i].grad for i in known]
        norm = torch.zeros_like(self.gamma)
        norms = torch._foreach_norm([grad.float() for grad in grads])
        norm[known] = torch.stack(norms)
        finite = norm.isfinite()
        observed = finite & (norm > 0)
        if self.t < self.t_start:
            total = norm.where(finite, 0).square().sum().sqrt()
            h = (self.lambda_abs / total).clamp(max=1.0).expand_as(norm)
            if self.init == "warmup_ema":
                new = self._average(
                    norm, 1 - min(10 / self.t_start, 1.0), bound=2.0
                )
            else:
                new = torch.minimum(self.gamma, h * norm)
        else:
            h = (self.lambda_rel * self.gamma / norm).clamp(max=1.0)
            h = h.where(norm > 0, 1.0)
            bound = self.lambda_rel
            if self.init == "warmup_ema" and self.t:
                bound = max(bound, 1 + self.t_start / self.t)
            new = self._average(norm, self.beta, bound)
        h = h.where(finite, 0.0)
        self.gamma = new.where(observed, self.gamma)
        self.t += 1
        torch._foreach_mul_(grads, list(h[known]))
        for gradient, is_finite in zip(grads, finite[known], strict=True):
            gradient.masked_fill_(~is_finite, 0.0)
        return h

    def _average(self, norm, beta, bound):
        """Moving average of ``min(norm, bound * gamma)``."""
        fed = torch.minimum(norm, bound * self.gamma)
        average = beta * self.gamma + (1 - beta) * fed
        return average.where(self.gamma.isfinite(), norm)
