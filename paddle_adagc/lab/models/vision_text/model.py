# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP: an image and a text tower with one space (Radford et al. 2021)."""

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.optimizer import Optimizer
from paddlenlp.transformers import PretrainedModel

from paddle_adagc.lab.models.layers import as_float32
from paddle_adagc.lab.models.vision_text.config import (
    MAX_LOGIT_SCALE,
    CLIPConfig,
)
from paddle_adagc.lab.models.vision_text.loss import contrastive_loss
from paddle_adagc.lab.models.vision_text.towers import (
    TextTransformer,
    VisionTransformer,
)


class CLIP(PretrainedModel):
    """The two towers and the logits' scale, for PaddleNLP's Trainer.

    Weights start as in CLIP's text tower, in both towers.

    Attributes:
        last_loss: The last contrastive loss, a detached float32 scalar; None
            before the first forward.
    """

    config_class = CLIPConfig
    base_model_prefix = "clip"

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        self.visual = VisionTransformer(config)
        self.textual = TextTransformer(config)
        self.logit_scale = self.create_parameter(
            [1],
            default_initializer=nn.initializer.Constant(
                config.logit_scale_init
            ),
        )
        self.last_loss: Tensor | None = None

    def encode_image(self, pixel_values: Tensor) -> Tensor:
        """Features of length 1, float32 [batch, embed_dim].

        Args:
            pixel_values: [batch, 3, image_size, image_size], normalised.
        """
        return F.normalize(as_float32(self.visual(pixel_values)), axis=-1)

    def encode_text(self, input_ids: Tensor) -> Tensor:
        """Features of length 1, float32 [batch, embed_dim].

        Args:
            input_ids: [batch, length], integer; each row has `end_token`.
        """
        return F.normalize(as_float32(self.textual(input_ids)), axis=-1)

    def forward(
        self, pixel_values: Tensor, input_ids: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the contrastive loss of pairs, and their features.

        In training the pairs of all ranks make one batch, see
        `contrastive_loss`; in evaluation each rank has its own.

        Args:
            pixel_values: [batch, 3, image_size, image_size], normalised.
            input_ids: [batch, length], integer.

        Returns:
            The loss, a float32 scalar; image and text features.
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
        """Keep the logits' scale in [1, 100], after an optimizer step.

        Args:
            optimizer: Optimizer of the model. If it keeps a float32 master
                weight of the scale, that is clamped too.
        """
        held = [self.logit_scale]
        masters = getattr(optimizer, "_master_weights", {})
        if self.logit_scale.name in masters:
            held.append(masters[self.logit_scale.name])
        for tensor in held:
            clamped = as_float32(tensor).clip(0.0, MAX_LOGIT_SCALE)
            paddle.assign(clamped.astype(tensor.dtype), tensor)
