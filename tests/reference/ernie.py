# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""ERNIE's clip and callback, as facts about them say: for Paddle, one process.

Written anew; ERNIE's own were not run.
"""

from pathlib import Path

import paddle
from paddle.nn.clip import ClipGradBase
from reference.adaptive_norm import AdaptiveNorm

FILE = "adaptivenorm_clip_state.pth"


class ClipGradByAdaptiveNorm(ClipGradBase):
    """A ``grad_clip`` with the state of theirs."""

    def __init__(self, **arguments):
        super().__init__()
        self.rule = AdaptiveNorm(**arguments)

    def _dygraph_clip(self, params_grads):
        arrays = {p.name: g.numpy() for p, g in params_grads if g is not None}
        [clipped] = self.rule.step([arrays])
        return [
            (p, g if g is None else paddle.to_tensor(clipped[p.name], g.dtype))
            for p, g in params_grads
        ]

    def state_dict(self):
        """Their form: norms are tensors of shape ``[1]``."""
        return as_theirs(self.rule.state_dict())

    def set_state_dict(self, state):
        """Take over a state with its arguments."""
        self.rule.set_state_dict(state)


def as_theirs(state):
    """Make the norms of a state tensors."""
    return {
        name: {**about, "norm_value": paddle.to_tensor(about["norm_value"])}
        if isinstance(about, dict)
        else about
        for name, about in state.items()
    }


class ClipGradByAdaptiveNormCallback:
    """Saves the clip's state with a checkpoint, and loads it."""

    def __getattr__(self, event):
        if event.startswith("on_"):
            return lambda *args, **kwargs: None
        raise AttributeError(event)

    def on_train_begin(self, args, state, control, optimizer, **kwargs):
        """Load the state of the checkpoint, if it has one."""
        path = Path(str(args.resume_from_checkpoint), FILE)
        if hasattr(optimizer._grad_clip, "state_dict") and path.exists():
            loaded = paddle.load(str(path))
            optimizer._grad_clip.set_state_dict(loaded)

    def on_save(self, args, state, control, optimizer, **kwargs):
        """Write the state into the newest checkpoint."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if hasattr(optimizer._grad_clip, "state_dict"):
            state = optimizer._grad_clip.state_dict()
            paddle.save(state, str(folder / FILE))
