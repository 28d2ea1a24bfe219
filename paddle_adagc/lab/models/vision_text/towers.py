# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The image and the text tower of CLIP."""

import paddle
from paddle import Tensor, nn

from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.transformer import Block, normal


class PatchDropout(nn.Layer):
    """Keep a random share of an image's patches in training (Li et al. 2023).

    Of n patches `max(1, int(n * (1 - rate)))` stay, drawn anew for every
    image; in evaluation all of them.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, patches: Tensor) -> Tensor:
        """Map [batch, patches, width] to [batch, kept, width]."""
        if not self.training or not self.rate:
            return patches
        batch, count, width = patches.shape
        num_kept = max(1, int(count * (1 - self.rate)))
        order = paddle.rand([batch, count]).argsort(axis=1)[:, :num_kept]
        rows = order + count * paddle.arange(batch).unsqueeze(1)
        kept = paddle.gather(patches.reshape([-1, width]), rows.reshape([-1]))
        return kept.reshape([batch, num_kept, width])


class VisionTransformer(nn.Layer):
    """Patches and a class token to the image's features (ViT)."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        width, eps = config.vision_width, config.layer_norm_eps
        scale = width**-0.5
        self.conv1 = nn.Conv2D(
            3,
            width,
            config.patch_size,
            config.patch_size,
            weight_attr=normal(0.02),
            bias_attr=False,
        )
        self.class_embedding = self.create_parameter(
            [width], attr=normal(scale)
        )
        self.positional_embedding = self.create_parameter(
            [config.num_patches + 1, width], attr=normal(scale)
        )
        self.positional_embedding.is_embedding = True
        self.patch_dropout = PatchDropout(config.patch_dropout)
        self.ln_pre = nn.LayerNorm(width, epsilon=eps)
        self.blocks = nn.LayerList(
            [
                Block(
                    width,
                    config.vision_heads,
                    config.vision_layers,
                    config.mlp_ratio,
                    config.activation,
                    causal=False,
                    eps=eps,
                )
                for _ in range(config.vision_layers)
            ]
        )
        self.ln_post = nn.LayerNorm(width, epsilon=eps)
        self.proj = self.create_parameter(
            [width, config.embed_dim], attr=normal(scale)
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Features of images.

        Args:
            pixel_values: [batch, 3, image_size, image_size], normalised.

        Returns:
            [batch, embed_dim], not normalised.
        """
        patches = self.conv1(pixel_values).flatten(2).transpose([0, 2, 1])
        patches = self.patch_dropout(patches + self.positional_embedding[1:])
        first = self.class_embedding + self.positional_embedding[0]
        first = first.expand([patches.shape[0], 1, first.shape[-1]])
        x = self.ln_pre(paddle.concat([first, patches], axis=1))
        for block in self.blocks:
            x = block(x)
        return paddle.matmul(self.ln_post(x[:, 0]), self.proj)


class TextTransformer(nn.Layer):
    """Tokens to the caption's features, by a causal transformer."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__()
        width, eps = config.text_width, config.layer_norm_eps
        self.end_token = config.end_token
        self.token_embedding = nn.Embedding(
            config.vocab_size, width, weight_attr=normal(0.02)
        )
        self.positional_embedding = self.create_parameter(
            [config.context_length, width], attr=normal(0.01)
        )
        self.positional_embedding.is_embedding = True
        self.blocks = nn.LayerList(
            [
                Block(
                    width,
                    config.text_heads,
                    config.text_layers,
                    config.mlp_ratio,
                    config.activation,
                    causal=True,
                    eps=eps,
                )
                for _ in range(config.text_layers)
            ]
        )
        self.ln_final = nn.LayerNorm(width, epsilon=eps)
        self.text_projection = self.create_parameter(
            [width, config.embed_dim], attr=normal(width**-0.5)
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        """Features of captions.

        Args:
            input_ids: [batch, length], integer; each row holds `end_token`,
                what comes after its first one does not matter.

        Returns:
            [batch, embed_dim], not normalised.
        """
        batch, length = input_ids.shape
        x = self.token_embedding(input_ids) + self.positional_embedding[:length]
        for block in self.blocks:
            x = block(x)
        end = (input_ids == self.end_token).astype("int64").argmax(axis=1)
        rows = end + length * paddle.arange(batch)
        pooled = paddle.gather(x.reshape([batch * length, -1]), rows)
        return paddle.matmul(self.ln_final(pooled), self.text_projection)
