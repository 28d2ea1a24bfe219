# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""An optimizer's name and arguments, one typed class for each optimizer."""

from __future__ import annotations

import dataclasses
from typing import get_args

from paddle_adagc.checks import (
    check_choice,
    check_decay,
    check_integer,
    check_positive,
    check_real,
)
from paddle_adagc.optimizers.muon import Scaling
from paddle_adagc.optimizers.spam import check_clip_start
from paddle_adagc.optimizers.update_clips import FORMS, Form


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What every optimizer has."""

    name: str
    """A key of :data:`OPTIMIZERS`; each class has its own as the default, and
    takes no other."""

    weight_decay: float = 0.1
    """Decoupled weight decay; norms and biases are exempt."""

    def __post_init__(self) -> None:
        if OPTIMIZERS.get(self.name) is not type(self):
            raise ValueError(
                f"name={self.name!r} is not that of {type(self).__name__}: "
                "leave it out"
            )
        if check_real("weight_decay", self.weight_decay) < 0:
            raise ValueError(f"weight_decay={self.weight_decay} is negative")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    """Arguments of AdamW (Loshchilov and Hutter 2019)."""

    name: str = "adamw"

    beta1: float = 0.9
    """Decay of the first moment."""

    beta2: float = 0.95
    """Decay of the second moment."""

    epsilon: float = 1e-8
    """Added to the square root of the second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta1", self.beta1)
        check_decay("beta2", self.beta2)
        check_positive("epsilon", self.epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LionConfig(OptimizerConfig):
    """Arguments of Lion (Chen et al. 2023)."""

    name: str = "lion"

    beta1: float = 0.9
    """Share of the momentum in the update's direction."""

    beta2: float = 0.99
    """Decay of the momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("beta1", self.beta1)
        check_decay("beta2", self.beta2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """Arguments of Muon (Jordan et al. 2024).

    The embedding, the head, routers and vectors are trained by AdamW.
    """

    name: str = "muon"

    momentum: float = 0.95
    """Decay of the momentum."""

    nesterov: bool = True
    """Look one step of the momentum ahead."""

    num_iterations: int = 5
    """Newton-Schulz iterations."""

    scaling: Scaling = "spectral"
    """Scale of an orthogonalised update: ``"spectral"`` is Jordan's
    ``sqrt(max(1, out / in))``; ``"rms"`` is Moonlight's ``0.2 sqrt(max(in,
    out))``, with which AdamW's learning rate and weight decay fit."""

    beta1: float = 0.9
    """AdamW's decay of the first moment."""

    beta2: float = 0.95
    """AdamW's decay of the second moment."""

    epsilon: float = 1e-8
    """AdamW's epsilon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "beta1", "beta2"):
            check_decay(name, getattr(self, name))
        check_integer("num_iterations", self.num_iterations, 1)
        check_choice("scaling", self.scaling, get_args(Scaling))
        check_positive("epsilon", self.epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SPAMConfig(AdamWConfig):
    """Arguments of SPAM (Huang et al. 2025)."""

    name: str = "spam"

    beta2: float = 0.999
    """Decay of the second moment."""

    epsilon: float = 1e-6
    """Added to the square root of the second moment."""

    threshold: float = 5000.0
    """Largest square of a gradient, in units of the second moment, that is not
    clipped."""

    reset_interval: int = 500
    """Steps from one reset of the moments to the next."""

    warmup_steps: int = 150
    """Steps over which the step size rises again after a reset."""

    clip_start: int = 20
    """Steps from the start and from every reset on without clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("threshold", self.threshold)
        check_integer("reset_interval", self.reset_interval, 1)
        check_integer("warmup_steps", self.warmup_steps, 0)
        check_integer("clip_start", self.clip_start, 0)
        check_clip_start(self.clip_start, self.reset_interval)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StableAdamWConfig(AdamWConfig):
    """Arguments of StableAdamW (Wortsman et al. 2023)."""

    name: str = "stable_adamw"

    beta2: float = 0.99
    """Decay of the second moment."""

    epsilon: float = 1e-6
    """Added to the square root of the second moment; its square bounds the
    second moment where the learning rate is lowered."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AGCAdamWConfig(AdamWConfig):
    """Arguments of AdamW with AGC on its update (after Brock et al. 2021)."""

    name: str = "adamw_agc"

    form: Form = "original"
    """``"original"``: the head is not clipped, and weight norms count as 0.001
    at least; ``"paper"``: neither, as in the AdaGC paper's table."""

    lambda_rel: float | None = None
    """Largest norm of a unit's update, in units of its weights' norm; None:
    0.01, in the paper's form 0.001."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("form", self.form, FORMS)
        if self.lambda_rel is not None:
            check_positive("lambda_rel", self.lambda_rel)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippyAdamWConfig(AdamWConfig):
    """Arguments of AdamW with Clippy on its update (Tang et al. 2023)."""

    name: str = "adamw_clippy"

    form: Form = "original"
    """``"original"``: the smallest ratio of any element; ``"paper"``: the
    ratio of the largest elements, as in the AdaGC paper's table."""

    lambda_rel: float | None = None
    """Allowed change in units of the weight; None: 0.1, in the paper's form
    0.01."""

    lambda_abs: float | None = None
    """Allowed change besides; None: 1e-7, in the paper's form 0.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("form", self.form, FORMS)
        for name in ("lambda_rel", "lambda_abs"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSClipAdamWConfig(AdamWConfig):
    """Arguments of AdamW with Adafactor's clip (Shazeer and Stern 2018)."""

    name: str = "adamw_rms_clip"

    threshold: float = 1.0
    """Largest root mean square of a tensor's update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("threshold", self.threshold)


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    "adamw": AdamWConfig,
    "lion": LionConfig,
    "muon": MuonConfig,
    "spam": SPAMConfig,
    "stable_adamw": StableAdamWConfig,
    "adamw_agc": AGCAdamWConfig,
    "adamw_clippy": ClippyAdamWConfig,
    "adamw_rms_clip": RMSClipAdamWConfig,
}
"""The arguments' class by the name that configs use; how each optimizer is
made stands in :mod:`paddle_adagc.lab.train.optimizers`."""

NEED_WHOLE_TENSORS = frozenset(
    ("muon", "stable_adamw", "adamw_agc", "adamw_clippy", "adamw_rms_clip")
)
"""Names of those whose rule looks at more than one element at a time."""
