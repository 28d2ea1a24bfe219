# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's optimizer from its typed arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.lab.train.optimizer_config import (
    AdamConfig,
    AdamWConfig,
    AGCAdamWConfig,
    ClippyAdamWConfig,
    LionConfig,
    MuonConfig,
    OptimizerConfig,
    RMSClipAdamWConfig,
    SPAMConfig,
    StableAdamWConfig,
)
from paddle_adagc.optimizers.lion import Lion
from paddle_adagc.optimizers.muon import Muon, hidden_matrices
from paddle_adagc.optimizers.spam import SPAM
from paddle_adagc.optimizers.stable_adamw import StableAdamW
from paddle_adagc.optimizers.update_clips import (
    AGC,
    ClippedAdamW,
    Clippy,
    RMSClip,
)
from paddle_adagc.parallel.layout import read_layout

_HEAD = "lm_head.weight"


def make_optimizer(
    settings: OptimizerConfig,
    model: nn.Layer,
    learning_rate: float | LRScheduler,
    grad_clip: ClipGradBase | None,
    multi_precision: bool,
) -> Optimizer:
    """Make the optimizer that a config's ``optimizer`` section describes.

    Matrices decay; vectors (norms, biases) and scalars do not.

    Args:
        settings: Optimizer and its arguments.
        model: Model of any layout, before fleet wraps it.
        learning_rate: A number or a scheduler.
        grad_clip: Clip for the optimizer; None: no clip.
        multi_precision: Keep float32 copies of weights in low precision.
    """
    decayed = {
        parameter.name for parameter in model.parameters() if parameter.ndim > 1
    }
    return _MAKERS[settings.name](
        settings,
        model,
        learning_rate=learning_rate,
        parameters=model.parameters(),
        weight_decay=settings.weight_decay,
        apply_decay_param_fun=lambda name: name in decayed,
        grad_clip=grad_clip,
        multi_precision=multi_precision,
    )


def _adam_arguments(settings: AdamConfig) -> dict[str, Any]:
    return {
        "beta1": settings.beta1,
        "beta2": settings.beta2,
        "epsilon": settings.epsilon,
    }


def _adamw(settings: AdamWConfig, model: nn.Layer, **common: Any) -> Optimizer:
    return paddle.optimizer.AdamW(**_adam_arguments(settings), **common)


def _spam(settings: SPAMConfig, model: nn.Layer, **common: Any) -> Optimizer:
    return SPAM(
        threshold=settings.threshold,
        reset_interval=settings.reset_interval,
        warmup_steps=settings.warmup_steps,
        clip_start=settings.clip_start,
        **_adam_arguments(settings),
        **common,
    )


def _stable_adamw(
    settings: StableAdamWConfig, model: nn.Layer, **common: Any
) -> Optimizer:
    return StableAdamW(**_adam_arguments(settings), **common)


def _adamw_agc(
    settings: AGCAdamWConfig, model: nn.Layer, **common: Any
) -> Optimizer:
    layout = read_layout(model)
    clips_head = settings.form == "paper"
    return ClippedAdamW(
        update_clip=AGC(form=settings.form, lambda_rel=settings.lambda_rel),
        apply_clip_param_fun=lambda n: clips_head or layout[n].key != _HEAD,
        is_embedding_fun=lambda name: layout[name].is_embedding,
        **_adam_arguments(settings),
        **common,
    )


def _adamw_clippy(
    settings: ClippyAdamWConfig, model: nn.Layer, **common: Any
) -> Optimizer:
    return ClippedAdamW(
        update_clip=Clippy(
            form=settings.form,
            lambda_rel=settings.lambda_rel,
            lambda_abs=settings.lambda_abs,
        ),
        **_adam_arguments(settings),
        **common,
    )


def _adamw_rms_clip(
    settings: RMSClipAdamWConfig, model: nn.Layer, **common: Any
) -> Optimizer:
    return ClippedAdamW(
        update_clip=RMSClip(threshold=settings.threshold),
        **_adam_arguments(settings),
        **common,
    )


def _lion(settings: LionConfig, model: nn.Layer, **common: Any) -> Optimizer:
    return Lion(beta1=settings.beta1, beta2=settings.beta2, **common)


def _muon(settings: MuonConfig, model: nn.Layer, **common: Any) -> Optimizer:
    return Muon(
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        num_iterations=settings.num_iterations,
        scaling=settings.scaling,
        adamw_beta1=settings.beta1,
        adamw_beta2=settings.beta2,
        adamw_epsilon=settings.epsilon,
        is_matrix_fun=hidden_matrices(model),
        **common,
    )


_MAKERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": _adamw,
    "lion": _lion,
    "muon": _muon,
    "spam": _spam,
    "stable_adamw": _stable_adamw,
    "adamw_agc": _adamw_agc,
    "adamw_clippy": _adamw_clippy,
    "adamw_rms_clip": _adamw_rms_clip,
}
"""Function by the optimizer's name. It takes the settings, the model, and the
arguments of every optimizer."""
