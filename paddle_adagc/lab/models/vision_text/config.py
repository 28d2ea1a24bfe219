# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The architecture of CLIP (Radford et al. 2021), and the paper's preset."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_adagc.lab.models.config import CheckedConfig
from paddle_adagc.lab.section import Count, Natural, Real, section

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


@section
class CLIPOptions:
    """Options of `CLIP`; the defaults are a toy."""

    embed_dim: Count = 32
    """Width of the space that images and texts share."""

    image_size: Count = 32
    """Height and width of an image, in pixels."""

    patch_size: Count = 8
    """Height and width of a patch in pixels, a divisor of the image's."""

    vision_width: Count = 64
    """Width of the image tower's residual stream."""

    vision_layers: Count = 2
    """Blocks of the image tower."""

    vision_heads: Count = 4
    """Attention heads of the image tower."""

    vocab_size: Count = 64
    """Number of tokens."""

    context_length: Count = 16
    """Tokens of a caption, padding included."""

    text_width: Count = 64
    """Width of the text tower's residual stream."""

    text_layers: Count = 2
    """Blocks of the text tower."""

    text_heads: Count = 4
    """Attention heads of the text tower."""

    mlp_ratio: Count = 4
    """Width of a feed-forward network over that of its tower."""

    activation: Literal["gelu", "quick_gelu"] = "gelu"
    """"quick_gelu" is CLIP's first one, `x * sigmoid(1.702 x)`, with which
    OpenAI's weights were trained."""

    patch_dropout: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    """Share of the patches that training leaves out (Li et al. 2023)."""

    end_token: Natural | None = None
    """Token that ends a caption, where the text is pooled; None: the last of
    the vocabulary."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        end = self.vocab_size - 1 if self.end_token is None else self.end_token
        if end >= self.vocab_size:
            raise ValueError(
                f"end_token={end} is not below vocab_size={self.vocab_size}"
            )
        object.__setattr__(self, "end_token", end)
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
        return self


class CLIPConfig(CheckedConfig):
    """PaddleNLP's config with the attributes of `CLIPOptions`."""

    model_type = "adagc_clip"
    options = CLIPOptions

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2
