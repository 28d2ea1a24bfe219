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
"""The architecture of CLIP (Radford et al. 2021), and the paper's preset."""

import inspect
import math
from typing import Any

from paddlenlp.transformers import PretrainedConfig

from paddle_adagc.checks import (
    check_choice,
    check_integer,
    check_positive,
    check_real,
    suggestion,
)

ACTIVATIONS = ("gelu", "quick_gelu")

MAX_LOGIT_SCALE = math.log(100.0)
"""Largest logarithm of the logits' scale, as in CLIP."""

# ViT-B/32, patch dropout 0.5 and 151M parameters are the paper's. It does not
# give the rest: those values are OpenAI's and OpenCLIP's ViT-B-32.
PRESETS: dict[str, dict[str, Any]] = {
    "clip-vit-b-32": {
        "embed_dim": 512,
        "image_size": 224,
        "patch_size": 32,
        "vision_width": 768,
        "vision_layers": 12,
        "vision_heads": 12,
        "vocab_size": 49408,
        "context_length": 77,
        "text_width": 512,
        "text_layers": 12,
        "text_heads": 8,
        "patch_dropout": 0.5,
    }
}

_COUNTS = (
    "embed_dim",
    "image_size",
    "patch_size",
    "vision_width",
    "vision_layers",
    "vision_heads",
    "vocab_size",
    "context_length",
    "text_width",
    "text_layers",
    "text_heads",
    "mlp_ratio",
)


class CLIPConfig(PretrainedConfig):
    """Options of `CLIP`; the defaults are a toy.

    Args:
        embed_dim: Width of the space that images and texts share.
        image_size: Height and width of an image, in pixels.
        patch_size: Height and width of a patch, a divisor of the image's.
        vision_width: Width of the image tower's residual stream.
        vision_layers: Blocks of the image tower.
        vision_heads: Attention heads of the image tower.
        vocab_size: Number of tokens.
        context_length: Tokens of a caption, padding included.
        text_width: Width of the text tower's residual stream.
        text_layers: Blocks of the text tower.
        text_heads: Attention heads of the text tower.
        mlp_ratio: Width of a feed-forward network over that of its tower.
        activation: "gelu", or CLIP's first "quick_gelu",
            `x * sigmoid(1.702 x)`, with which OpenAI's weights were trained.
        patch_dropout: Share of the patches that training leaves out, in
            [0, 1) (Li et al. 2023).
        logit_scale_init: Logarithm of the logits' scale at the start.
        end_token: Token that ends a caption, where the text is pooled; None
            for the last of the vocabulary.
        layer_norm_eps: Added to the variance in every LayerNorm.
        **kwargs: PaddleNLP's own keys. It also accepts misspelled ones:
            compare a user's keys with `field_names()` first.

    Raises:
        ValueError: A value out of range, or two that do not fit.
        TypeError: A value of the wrong type.
    """

    model_type = "adagc_clip"

    def __init__(
        self,
        *,
        embed_dim: int = 32,
        image_size: int = 32,
        patch_size: int = 8,
        vision_width: int = 64,
        vision_layers: int = 2,
        vision_heads: int = 4,
        vocab_size: int = 64,
        context_length: int = 16,
        text_width: int = 64,
        text_layers: int = 2,
        text_heads: int = 4,
        mlp_ratio: int = 4,
        activation: str = "gelu",
        patch_dropout: float = 0.0,
        logit_scale_init: float = math.log(1 / 0.07),
        end_token: int | None = None,
        layer_norm_eps: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.embed_dim = embed_dim
        self.image_size = image_size
        self.patch_size = patch_size
        self.vision_width = vision_width
        self.vision_layers = vision_layers
        self.vision_heads = vision_heads
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.text_width = text_width
        self.text_layers = text_layers
        self.text_heads = text_heads
        self.mlp_ratio = mlp_ratio
        self.activation = activation
        self.patch_dropout = patch_dropout
        self.logit_scale_init = logit_scale_init
        self.layer_norm_eps = layer_norm_eps
        for name in _COUNTS:
            check_integer(name, getattr(self, name), 1)
        self.end_token = vocab_size - 1 if end_token is None else end_token
        self._check()

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Names of the architecture options, in the order of the signature."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return tuple(
            p.name
            for p in parameters
            if p.kind is inspect.Parameter.KEYWORD_ONLY
        )

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    def _check(self) -> None:
        check_choice("activation", self.activation, ACTIVATIONS)
        check_positive("layer_norm_eps", self.layer_norm_eps)
        if check_real("logit_scale_init", self.logit_scale_init) > (
            MAX_LOGIT_SCALE
        ):
            raise ValueError(
                f"logit_scale_init={self.logit_scale_init} is above ln 100"
            )
        if not 0 <= check_real("patch_dropout", self.patch_dropout) < 1:
            raise ValueError(
                f"patch_dropout={self.patch_dropout}: give one in [0, 1)"
            )
        check_integer("end_token", self.end_token, 0)
        if self.end_token >= self.vocab_size:
            raise ValueError(
                f"end_token={self.end_token} is not below "
                f"vocab_size={self.vocab_size}"
            )
        for name, divisor in (
            ("image_size", "patch_size"),
            ("vision_width", "vision_heads"),
            ("text_width", "text_heads"),
        ):
            if getattr(self, name) % getattr(self, divisor):
                raise ValueError(
                    f"{name}={getattr(self, name)} is not a multiple of "
                    f"{divisor}={getattr(self, divisor)}: change one"
                )


def make_clip_config(fields: dict[str, Any], **overrides: Any) -> CLIPConfig:
    """The config that a run's `model` section describes.

    Args:
        fields: Options of `CLIPConfig`; with `preset`, a key of `PRESETS`,
            that preset's values come first.
        **overrides: Options that replace those of `fields`.

    Raises:
        ValueError: An unknown preset or option (the nearest one is named),
            or a value out of range.
    """
    values = {**fields, **overrides}
    name = values.pop("preset", None)
    if name is not None:
        check_choice("model.preset", name, PRESETS)
        values = {**PRESETS[name], **values}
    known = CLIPConfig.field_names()
    for key in values:
        if key not in known:
            raise ValueError(
                f"unknown key 'model.{key}'{suggestion(key, known)}"
            )
    return CLIPConfig(**values)
