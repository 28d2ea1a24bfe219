# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP: an image and a text tower with one space (Radford et al. 2021)."""

import functools
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
import paddle
import paddle.distributed as dist
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.optimizer import Optimizer
from pydantic import Field, model_validator
from typing_extensions import Self

from adagc_lab.models.attention import attend
from adagc_lab.models.config import CheckedConfig, PretrainedModel
from adagc_lab.models.decoder import cross_entropy
from adagc_lab.models.layers import as_float32
from adagc_lab.section import Count, Real, Section

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


class CLIPOptions(Section):
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
    """Number of tokens. The last one ends a caption, where the text is pooled.
    """

    context_length: Count = 16
    """Tokens of a caption, padding included."""

    text_width: Count = 64
    """Width of the text tower's residual stream."""

    text_layers: Count = 2
    """Blocks of the text tower."""

    text_heads: Count = 4
    """Attention heads of the text tower."""

    patch_dropout: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    """Share of the patches that training leaves out (Li et al. 2023)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
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
        return (self.image_size // self.patch_size) ** 2

    @property
    def end_token(self) -> int:
        return self.vocab_size - 1


def _normal(std: float) -> paddle.ParamAttr:
    """Attributes of a weight drawn from N(0, std^2)."""
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std))


class SelfAttention(nn.Layer):
    """Multi-head attention; query, key and value are one weight, as in CLIP.

    So a per-tensor clip has one norm for all three.
    """

    def __init__(
        self, width: int, heads: int, num_layers: int, is_causal: bool
    ) -> None:
        super().__init__()
        std = width**-0.5
        self.in_proj = nn.Linear(width, 3 * width, _normal(std))
        self.out_proj = nn.Linear(
            width, width, _normal(std * (2 * num_layers) ** -0.5)
        )
        self.heads = heads
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        parts = self.in_proj(x).reshape([*x.shape[:2], 3, self.heads, -1])
        query, key, value = paddle.unbind(parts, axis=2)
        mixed = attend(query, key, value, is_causal=self.is_causal)
        return self.out_proj(mixed.reshape(x.shape))


class FeedForward(nn.Layer):
    """Two linear maps with a GELU between them."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        hidden = 4 * width
        self.c_fc = nn.Linear(width, hidden, _normal((2 * width) ** -0.5))
        self.c_proj = nn.Linear(
            hidden, width, _normal(width**-0.5 * (2 * num_layers) ** -0.5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Layer):
    """Attention and feed-forward network of a tower, each behind a norm."""

    def __init__(
        self, config: CLIPConfig, tower: Literal["vision", "text"]
    ) -> None:
        super().__init__()
        width, heads, num_layers = (
            getattr(config, f"{tower}_{name}")
            for name in ("width", "heads", "layers")
        )
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, num_layers, tower == "text")
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, num_layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def drop_patches(patches: Tensor, rate: float) -> Tensor:
    """Keep a random share of each image's patches (Li et al. 2023).

    Of n patches [batch, n, width] `max(1, int(n * (1 - rate)))` stay, drawn
    anew for every image.
    """
    batch, count, width = patches.shape
    num_kept = max(1, int(count * (1 - rate)))
    order = paddle.rand([batch, count]).argsort(axis=1)[:, :num_kept]
    rows = order + count * paddle.arange(batch).unsqueeze(1)
    kept = paddle.gather(patches.reshape([-1, width]), rows.reshape([-1]))
    return kept.reshape([batch, num_kept, width])


class VisionTransformer(nn.Layer):
    """Patches and a class token to the image's features (ViT)."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        width, patch = config.vision_width, config.patch_size
        scale = width**-0.5
        self.conv1 = nn.Conv2D(
            3, width, patch, patch, weight_attr=_normal(0.02), bias_attr=False
        )
        make = functools.partial(self.create_parameter, attr=_normal(scale))
        self.class_embedding = make([width])
        self.positional_embedding = make([config.num_patches + 1, width])
        self.positional_embedding.is_embedding = True
        self.patch_dropout = config.patch_dropout
        self.ln_pre = nn.LayerNorm(width)
        self.blocks = nn.Sequential(
            *(Block(config, "vision") for _ in range(config.vision_layers))
        )
        self.ln_post = nn.LayerNorm(width)
        self.proj = make([width, config.embed_dim])

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map normalised images to features, [batch, embed_dim]."""
        patches = self.conv1(pixel_values).flatten(2).transpose([0, 2, 1])
        patches = patches + self.positional_embedding[1:]
        if self.training and self.patch_dropout:
            patches = drop_patches(patches, self.patch_dropout)
        first = self.class_embedding + self.positional_embedding[0]
        first = first.expand([patches.shape[0], 1, first.shape[-1]])
        x = self.ln_pre(paddle.concat([first, patches], axis=1))
        return paddle.matmul(self.ln_post(self.blocks(x)[:, 0]), self.proj)


class TextTransformer(nn.Layer):
    """Tokens to the caption's features, by a causal transformer."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        width = config.text_width
        self.end_token = config.end_token
        self.token_embedding = nn.Embedding(
            config.vocab_size, width, weight_attr=_normal(0.02)
        )
        self.positional_embedding = self.create_parameter(
            [config.context_length, width], attr=_normal(0.01)
        )
        self.positional_embedding.is_embedding = True
        self.blocks = nn.Sequential(
            *(Block(config, "text") for _ in range(config.text_layers))
        )
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = self.create_parameter(
            [width, config.embed_dim], attr=_normal(width**-0.5)
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map captions up to their `end_token` to features, [batch, dim]."""
        batch, length = input_ids.shape
        x = self.token_embedding(input_ids) + self.positional_embedding[:length]
        x = self.blocks(x)
        end = (input_ids == self.end_token).astype("int64").argmax(axis=1)
        rows = end + length * paddle.arange(batch)
        pooled = paddle.gather(x.reshape([batch * length, -1]), rows)
        return paddle.matmul(self.ln_final(pooled), self.text_projection)


class _GatherRows(PyLayer):
    """Rows of all ranks, in their order; gradients are summed over ranks."""

    @staticmethod
    def forward(context: object, rows: Tensor) -> Tensor:
        parts: list[Tensor] = []
        dist.all_gather(parts, rows.contiguous())
        return paddle.concat(parts, axis=0)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        rank, size = dist.get_rank(), dist.get_world_size()
        return paddle.split(gradient, size, axis=0)[rank]


def contrastive_loss(
    image_features: Tensor,
    text_features: Tensor,
    scale: Tensor,
    *,
    over_ranks: bool,
) -> Tensor:
    """Cross-entropy of finding the own text, and the own image, averaged.

    Features are [pairs, embed_dim] of this rank, of length 1. With `over_ranks`
    all ranks hold one batch together, in equal parts: the means of their losses
    and gradients are then those of the whole batch in one process.
    """
    images, texts, first = image_features, text_features, 0
    if over_ranks and dist.get_world_size() > 1:
        images, texts = _GatherRows.apply(images), _GatherRows.apply(texts)
        first = dist.get_rank() * image_features.shape[0]
    labels = first + paddle.arange(image_features.shape[0])
    to_text = paddle.matmul(image_features, texts, transpose_y=True)
    to_image = paddle.matmul(text_features, images, transpose_y=True)
    return 0.5 * (
        cross_entropy(scale * to_text, labels)
        + cross_entropy(scale * to_image, labels)
    )


class CLIP(PretrainedModel):
    """The two towers and the logits' scale, for PaddleNLP's Trainer.

    `last_loss` is the last contrastive loss, detached.
    """

    config_class = CLIPConfig
    base_model_prefix = "clip"

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        self.visual = VisionTransformer(config)
        self.textual = TextTransformer(config)
        start = nn.initializer.Constant(math.log(1 / 0.07))  # CLIP's
        self.logit_scale = self.create_parameter([1], default_initializer=start)
        self.last_loss: Tensor | None = None

    def encode_image(self, pixel_values: Tensor) -> Tensor:
        """Features of length 1, float32 [batch, embed_dim]."""
        return F.normalize(as_float32(self.visual(pixel_values)), axis=-1)

    def encode_text(self, input_ids: Tensor) -> Tensor:
        return F.normalize(as_float32(self.textual(input_ids)), axis=-1)

    def forward(
        self, pixel_values: Tensor, input_ids: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the contrastive loss of pairs, image and text features.

        In training the pairs of all ranks make one batch. Images are [batch, 3,
        image_size, image_size], normalised; each row of the tokens [batch,
        length] has `end_token`.
        """
        image_features = self.encode_image(pixel_values)
        text_features = self.encode_text(input_ids)
        loss = contrastive_loss(
            image_features,
            text_features,
            as_float32(self.logit_scale).exp(),
            over_ranks=self.training,
        )
        self.last_loss = loss.detach()
        return loss, image_features, text_features

    @paddle.no_grad()
    def clamp_logit_scale(self, optimizer: Optimizer | None = None) -> None:
        """Keep the logits' scale, and its master weight, in [1, 100]."""
        held = [self.logit_scale]
        masters = getattr(optimizer, "_master_weights", {})
        if self.logit_scale.name in masters:
            held.append(masters[self.logit_scale.name])
        for tensor in held:
            clamped = as_float32(tensor).clip(0.0, MAX_LOGIT_SCALE)
            paddle.assign(clamped.astype(tensor.dtype), tensor)


@paddle.no_grad()
def retrieval_accuracy(
    model: CLIP, batches: Iterable[tuple[np.ndarray, np.ndarray]]
) -> float:
    """Share of images whose own caption, or an equal one, is the nearest.

    A batch is images and their captions' tokens [batch, length].
    """
    was_training = model.training
    model.eval()
    images, captions = [], []
    for pixel_values, input_ids in batches:
        captions.append(input_ids)
        images.append(model.encode_image(paddle.to_tensor(pixel_values)))
    distinct, own = np.unique(
        np.concatenate(captions), axis=0, return_inverse=True
    )
    size = len(captions[0])
    texts = [
        model.encode_text(paddle.to_tensor(distinct[i : i + size]))
        for i in range(0, len(distinct), size)
    ]
    cosines = paddle.matmul(
        paddle.concat(images), paddle.concat(texts), transpose_y=True
    )
    if was_training:
        model.train()
    nearest = cosines.argmax(axis=-1).numpy()
    return float(np.mean(nearest == own.reshape(-1)))
