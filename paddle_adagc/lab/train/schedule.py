# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules: constant, cosine and WSD, with linear warm-up."""

from __future__ import annotations

import math

import paddle

from paddle_adagc.lab.train.config import ScheduleConfig


def learning_rate(config: ScheduleConfig, step: int, max_steps: int) -> float:
    """Return the rate of the optimizer step with index ``step``, from 0.

    WSD (warm-up, stable, decay) is flat until the last ``decay_fraction`` of
    the steps; the paper gives neither its length nor its shape.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    return config.learning_rate * _share(config, step, max_steps)


def unfinished_warm_up(name: str, steps: int, max_steps: int) -> list[str]:
    """Say in a line that the run ends within a warm-up, if it does.

    Args:
        name: Dotted key of the warm-up.
        steps: Its length.
        max_steps: That of the run.
    """
    if steps < max_steps:
        return []
    return [
        f"{name}={steps}, and train.max_steps={max_steps}: the run ends before "
        "this warm-up is over"
    ]


def make_scheduler(
    config: ScheduleConfig, max_steps: int
) -> paddle.optimizer.lr.LRScheduler:
    """Make Paddle's scheduler of :func:`learning_rate`, stepped once a step."""
    return paddle.optimizer.lr.LambdaDecay(
        config.learning_rate,
        lambda step: (
            learning_rate(config, step, max_steps) / config.learning_rate
        ),
    )


def _share(config: ScheduleConfig, step: int, max_steps: int) -> float:
    if config.kind == "constant":
        return 1.0
    if config.kind == "cosine":
        first, shape = config.warmup_steps, "cosine"
    else:
        decay_steps = round(config.decay_fraction * max_steps)
        first = max(config.warmup_steps, max_steps - decay_steps)
        shape = config.decay_shape
    progress = (step - first) / max(max_steps - first, 1)
    left = _decay(shape, min(max(progress, 0.0), 1.0))
    return config.min_ratio + (1.0 - config.min_ratio) * left


def _decay(shape: str, progress: float) -> float:
    if shape == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if shape == "sqrt":
        return 1.0 - math.sqrt(progress)
    return 1.0 - progress
