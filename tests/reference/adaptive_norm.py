# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rule of ``ClipGradByAdaptiveNorm``, ERNIE's or Paddle's, in NumPy.

Written from the facts in docs/upstream.md; neither class was run.
"""

import numpy as np

NUMBERS = ("clip_ratio", "beta", "epsilon", "start_clip_steps", "steps")
FLAGS = ("shard_clip", "enable_record", "enable_record_clip_history")


class AdaptiveNorm:
    """Clips the gradients of all tensor-parallel ranks at once.

    ``is_paddle_s``: the squares are divided by the number of ranks where they
    split a tensor, and not where they hold copies.
    """

    def __init__(
        self,
        clip_ratio=1.03,
        start_clip_steps=100,
        beta=0.98,
        epsilon=1e-8,
        is_paddle_s=False,
    ):
        self.clip_ratio, self.start_clip_steps = clip_ratio, start_clip_steps
        self.beta, self.epsilon = beta, epsilon
        self.is_paddle_s = is_paddle_s
        self.steps, self.values, self.times = 0, {}, {}

    def step(self, ranks, split=()):
        """Return the clipped gradients of each rank, arrays by name."""
        names = [name for name, g in ranks[0].items() if g is not None]
        norms, total = {}, 0.0
        for name in names:
            parts = [np.sum(np.square(g[name], dtype="f8")) for g in ranks]
            whole = sum(parts) if name in split else parts[0]
            total += whole
            if self.is_paddle_s:
                whole = np.mean(parts) if name in split else sum(parts)
            norms[name] = np.sqrt(whole)
        factor = {}
        for name, norm in norms.items():
            value = self.values.setdefault(name, norm)
            if self.steps <= self.start_clip_steps:
                factor[name] = min(1.0 / (np.sqrt(total) + self.epsilon), 1.0)
                if norm < value:
                    self.values[name] = norm
                continue
            bound, factor[name] = self.clip_ratio * value, 1.0
            if norm > bound:
                factor[name] = bound / (norm + self.epsilon)
                norm = bound
                self.times[name] = self.times.get(name, 0) + 1
            self.values[name] = self.beta * value + (1 - self.beta) * norm
        self.steps += 1
        return [
            {name: factor[name] * gradients[name] for name in names}
            for gradients in ranks
        ]

    def state_dict(self):
        """Their form; where theirs has tensors, arrays ``[1]``."""
        by_name = {
            name: {
                "norm_value": np.array([value], np.float32),
                "clip_times": self.times.get(name, 0),
            }
            for name, value in self.values.items()
        }
        about = {name: getattr(self, name) for name in NUMBERS}
        return {**by_name, **about, **dict.fromkeys(FLAGS, False)}

    def set_state_dict(self, state):
        """Go on from a state, with its arguments."""
        for name in NUMBERS:
            setattr(self, name, state[name])
        for name, about in state.items():
            if isinstance(about, dict):
                self.values[name] = np.asarray(about["norm_value"]).item()
                self.times[name] = about["clip_times"]
