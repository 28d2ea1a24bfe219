# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's optimizer, its precision and learning rate, from its config."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LambdaDecay, LRScheduler

from adagc_lab.clips.agc import embeddings
from adagc_lab.optimizers import (
    SPAM,
    ClippedAdamW,
    Lion,
    Muon,
    StableAdamW,
    hidden_matrices,
    update_clips,
)
from adagc_lab.train.config import (
    AdamW,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from paddle_adagc.parallel.layout import read_layout

_HEAD = "lm_head.weight"
CLASSES = {
    "adamw": paddle.optimizer.AdamW,
    "lion": Lion,
    "muon": Muon,
    "spam": SPAM,
    "stable_adamw": StableAdamW,
}
"""By name in a config; AdamW with a clip of its update is none of them."""

UPDATE_CLIPS: dict[str, Any] = {
    "adamw_agc": update_clips.AGC,
    "adamw_clippy": update_clips.Clippy,
}
"""Clips of AdamW's update; they take what is no argument of Adam."""


def make_optimizer(
    settings: OptimizerConfig,
    model: nn.Layer,
    learning_rate: float | LRScheduler,
    grad_clip: ClipGradBase | None,
    multi_precision: bool,
) -> Optimizer:
    """Make the optimizer that a config's ``optimizer`` section describes.

    Matrices decay; vectors (norms, biases) and scalars do not. The model may
    have any layout; fleet has not wrapped it yet. With ``multi_precision``
    weights in low precision have float32 copies.
    """
    decayed = {p.name for p in model.parameters() if p.ndim > 1}
    arguments = settings.model_dump()
    name = arguments.pop("name")
    if name == "muon":
        arguments["is_matrix_fun"] = hidden_matrices(model)
    elif name in UPDATE_CLIPS:
        own = {
            key: arguments.pop(key)
            for key in {*arguments} - {*AdamW.model_fields}
        }
        arguments["update_clip"] = UPDATE_CLIPS[name](**own)
    if name == "adamw_agc":
        layout = read_layout(model)
        clips_head = arguments["update_clip"].form == "paper"
        arguments["apply_clip_param_fun"] = lambda n: (
            clips_head or layout[n].key != _HEAD
        )
        arguments["is_embedding_fun"] = embeddings(model).__contains__
    return CLASSES.get(name, ClippedAdamW)(
        learning_rate=learning_rate,
        parameters=model.parameters(),
        apply_decay_param_fun=lambda name: name in decayed,
        grad_clip=grad_clip,
        multi_precision=multi_precision,
        **arguments,
    )


def learning_rate(config: ScheduleConfig, step: int, max_steps: int) -> float:
    """Return the rate of the optimizer step with index ``step``, from 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.kind == "constant":
        return config.learning_rate
    first, shape = config.warmup_steps, "cosine"
    if config.kind == "wsd":
        decay_steps = round(config.decay_fraction * max_steps)
        first = max(config.warmup_steps, max_steps - decay_steps)
        shape = config.decay_shape
    progress = (step - first) / max(max_steps - first, 1)
    left = _DECAYS[shape](min(max(progress, 0.0), 1.0))
    share = config.min_ratio + (1.0 - config.min_ratio) * left
    return config.learning_rate * share


_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "sqrt": lambda progress: 1.0 - math.sqrt(progress),
}


def make_scheduler(config: ScheduleConfig, max_steps: int) -> LRScheduler:
    """Make Paddle's scheduler of :func:`learning_rate`, stepped once a step."""
    peak = config.learning_rate
    return LambdaDecay(
        peak, lambda step: learning_rate(config, step, max_steps) / peak
    )


def unfinished_warm_up(name: str, steps: int, max_steps: int) -> list[str]:
    """Say in a line that a run ends within a warm-up, by its dotted key."""
    if steps < max_steps:
        return []
    return [
        f"{name}={steps}, and train.max_steps={max_steps}: the run ends before "
        "this warm-up is over"
    ]


def uses_amp(train: TrainConfig) -> bool:
    """Tell whether weights are in low precision with float32 masters."""
    if train.precision == "float8":
        return paddle.device.is_compiled_with_cuda()
    return train.precision != "float32"


def check_precision(train: TrainConfig) -> None:
    """Refuse low precision on a machine without a GPU."""
    if uses_amp(train) and not paddle.device.is_compiled_with_cuda():
        raise ValueError(
            f"train.precision={train.precision}: this build of Paddle has no "
            "GPU, and its CPU kernels have no matrix product in low "
            "precision; use float32, or float8, which rounds to it"
        )
