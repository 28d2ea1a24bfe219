# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An optimizer's name and arguments, one section for each optimizer.

A key is an argument of the class in :mod:`paddle_adagc.optimizers` (or, of
:mod:`.update_clips` there), which explains it. The defaults are those of runs,
and may differ from the class's own. Paddle is not needed to read them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_adagc.lab.section import (
    Count,
    Decay,
    Flag,
    Natural,
    NonNegative,
    Positive,
    section,
)

Form = Literal["original", "paper"]


@section
class OptimizerConfig:
    """Arguments of every optimizer."""

    name: str
    """Key of :data:`OPTIMIZERS`, fixed in each class."""

    weight_decay: NonNegative = 0.1
    """Decoupled weight decay; norms and biases are exempt."""

    needs_whole_tensors: ClassVar[bool] = False
    """The rule looks at more than one element of a tensor at a time."""

    has_adam_moments: ClassVar[bool] = False
    """Every tensor has Adam's two moments."""


@section
class AdamConfig(OptimizerConfig):
    """Arguments of Adam and of what is built on it."""

    has_adam_moments: ClassVar[bool] = True
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Positive = 1e-8


@section
class AdamWConfig(AdamConfig):
    """Arguments of AdamW (Loshchilov and Hutter 2019)."""

    name: Literal["adamw"] = "adamw"


@section
class LionConfig(OptimizerConfig):
    """Arguments of Lion (Chen et al. 2023)."""

    name: Literal["lion"] = "lion"
    beta1: Decay = 0.9
    beta2: Decay = 0.99


@section
class MuonConfig(AdamConfig):
    """Arguments of Muon (Jordan et al. 2024).

    The embedding, the head, routers and vectors are trained by AdamW.
    """

    name: Literal["muon"] = "muon"
    has_adam_moments: ClassVar[bool] = False
    needs_whole_tensors: ClassVar[bool] = True
    momentum: Decay = 0.95
    nesterov: Flag = True
    num_iterations: Count = 5
    scaling: Literal["spectral", "rms"] = "spectral"


@section
class SPAMConfig(AdamConfig):
    """Arguments of SPAM (Huang et al. 2025)."""

    name: Literal["spam"] = "spam"
    beta2: Decay = 0.999
    epsilon: Positive = 1e-6
    threshold: Positive = 5000.0
    reset_interval: Count = 500
    warmup_steps: Natural = 150
    clip_start: Natural = 20

    @model_validator(mode="after")
    def _check_clip_start(self) -> Self:
        if self.clip_start >= self.reset_interval:
            raise ValueError(
                f"clip_start={self.clip_start} must be below "
                f"reset_interval={self.reset_interval}: nothing would be "
                "clipped"
            )
        return self


@section
class StableAdamWConfig(AdamConfig):
    """Arguments of StableAdamW (Wortsman et al. 2023)."""

    name: Literal["stable_adamw"] = "stable_adamw"
    needs_whole_tensors: ClassVar[bool] = True
    beta2: Decay = 0.99
    epsilon: Positive = 1e-6


@section
class AGCAdamWConfig(AdamConfig):
    """Arguments of AdamW with AGC on its update (after Brock et al. 2021)."""

    name: Literal["adamw_agc"] = "adamw_agc"
    needs_whole_tensors: ClassVar[bool] = True
    form: Form = "original"
    lambda_rel: Positive | None = None


@section
class ClippyAdamWConfig(AdamConfig):
    """Arguments of AdamW with Clippy on its update (Tang et al. 2023)."""

    name: Literal["adamw_clippy"] = "adamw_clippy"
    needs_whole_tensors: ClassVar[bool] = True
    form: Form = "original"
    lambda_rel: Positive | None = None
    lambda_abs: Positive | None = None


@section
class RMSClipAdamWConfig(AdamConfig):
    """Arguments of AdamW with Adafactor's clip (Shazeer and Stern 2018)."""

    name: Literal["adamw_rms_clip"] = "adamw_rms_clip"
    needs_whole_tensors: ClassVar[bool] = True
    threshold: Positive = 1.0


AnyOptimizerConfig = Annotated[
    AdamWConfig
    | LionConfig
    | MuonConfig
    | SPAMConfig
    | StableAdamWConfig
    | AGCAdamWConfig
    | ClippyAdamWConfig
    | RMSClipAdamWConfig,
    Field(discriminator="name"),
]
"""One of the optimizers, told apart by ``name``."""

OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    kind.name: kind for kind in get_args(get_args(AnyOptimizerConfig)[0])
}
"""Class of the arguments by the name that configs use."""
