# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/torch_adagc.py, as the conformance kit calls an implementation."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from torch_adagc import AdaGC


def run(case):
    """Return of each step the clipped gradients and gamma, by name."""
    if case.num_ranks > 1:
        raise NotImplementedError("one process")
    shapes = {
        name: gradient.shape
        for step in case.steps
        for name, gradient in step.items()
        if gradient is not None
    }
    parameters = {
        n: torch.nn.Parameter(torch.zeros(s)) for n, s in shapes.items()
    }
    clips = [AdaGC(parameters.items(), **case.arguments) for _ in "12"]
    clip, steps = clips[0], []
    for t, gradients in enumerate(case.steps, 1):
        for name, parameter in parameters.items():
            gradient = gradients.get(name)
            parameter.grad = (
                None if gradient is None else torch.from_numpy(gradient.copy())
            )
        clip.step()
        out = {
            name: None if p.grad is None else p.grad.numpy()
            for name, p in parameters.items()
        }
        steps.append((out, clip.state_dict()["gamma"]))
        if t == case.resume_after:
            clips[1].load_state_dict(clip.state_dict())
            clip = clips[1]
    return steps
