# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder: Llama-2, Qwen3, Mixtral and ERNIE-4.5 MoE by options."""

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.distributed import fleet
from paddlenlp.transformers import PretrainedModel, register_base_model

from paddle_adagc.lab.models.attention import Attention
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.layers import (
    GatedMLP,
    column_linear,
    split_sequence,
    tied_head,
    token_embedding,
    uses_sequence_parallel,
    whole_sequence,
)
from paddle_adagc.lab.models.loss import cross_entropy, training_loss
from paddle_adagc.lab.models.moe import MoE
from paddle_adagc.lab.models.parallel import check_length, check_parallel
from paddle_adagc.lab.models.rms_norm import residual_norm


class DecoderPretrainedModel(PretrainedModel):
    """Settings by which PaddleNLP saves and loads the decoder."""

    config_class = DecoderConfig
    base_model_prefix = "model"


class DecoderLayer(nn.Layer):
    """Pre-norm attention and feed-forward network, each with a residual."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.is_split = uses_sequence_parallel(config)
        self.self_attn = Attention(config)
        self.has_experts = config.is_moe_layer(index)
        self.mlp: nn.Layer = (
            MoE(config)
            if self.has_experts
            else GatedMLP(config, config.intermediate_size, self.is_split)
        )
        self.input_layernorm = residual_norm(config)
        self.post_attention_layernorm = residual_norm(config)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map [batch, length, hidden] to the same shape.

        Under sequence parallelism [length / ranks, batch, hidden]; experts
        get whole sequences.

        Returns:
            The hidden states, and the router losses of `MoE.forward`; None
            in a dense layer.
        """
        x = x + self.self_attn(self.input_layernorm(x))
        normed = self.post_attention_layernorm(x)
        if not self.has_experts:
            return x + self.mlp(normed), None
        if self.is_split:
            mixed, router_losses = self.mlp(whole_sequence(normed))
            return x + split_sequence(mixed), router_losses
        mixed, router_losses = self.mlp(normed)
        return x + mixed, router_losses


@register_base_model
class DecoderModel(DecoderPretrainedModel):
    """Embedding, decoder layers and final norm, without the head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        check_parallel(config)
        self.is_split = uses_sequence_parallel(config)
        self.embed_tokens = token_embedding(config)
        self.layers = nn.LayerList(
            [DecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        )
        self.norm = residual_norm(config)
        self.enable_recompute = False

    def get_input_embeddings(self) -> nn.Layer:
        """Return the embedding layer (PaddleNLP's interface)."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Layer) -> None:
        """Replace the embedding layer (PaddleNLP's interface)."""
        self.embed_tokens = value

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states after the final norm.

        Args:
            input_ids: [batch, length], integer.

        Returns:
            [batch, length, hidden]; and the router losses (see
            `MoE.forward`), averaged over the MoE layers, or None.
        """
        check_length(input_ids, self.config)
        x = self.embed_tokens(input_ids)
        if self.is_split:
            x = split_sequence(x)
        router_losses = []
        for layer in self.layers:
            if self.enable_recompute and self.training:
                x, losses = fleet.utils.recompute(layer, x, use_reentrant=False)
            else:
                x, losses = layer(x)
            if losses is not None:
                router_losses.append(losses)
        mean = (
            paddle.stack(router_losses).mean(axis=0) if router_losses else None
        )
        x = self.norm(x)
        return whole_sequence(x) if self.is_split else x, mean


class DecoderForCausalLM(DecoderPretrainedModel):
    """Language model over `DecoderConfig`, for PaddleNLP's Trainer.

    Attributes:
        last_losses: Parts of the last loss, detached scalars, float32:
            "lm_loss", and with experts "router_aux_loss" and
            "router_z_loss" without their factors. Empty before the first
            forward with labels.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = DecoderModel(config)
        self.lm_head: nn.Layer | None = None
        if not config.tie_word_embeddings:
            self.lm_head = column_linear(
                config, config.hidden_size, config.vocab_size
            )
        self.last_losses: dict[str, Tensor] = {}

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, and the training loss where labels are given.

        Args:
            input_ids: [batch, length], integer.
            labels: [batch, length], integer, already aligned: `labels[:, t]`
                is the token that follows `input_ids[:, t]`. Positions with
                -100 do not count.

        Returns:
            Logits [batch, length, vocab] (under tensor parallelism this
            rank's share of the vocabulary); with labels the pair (loss,
            logits). The loss is a float32 scalar: mean cross-entropy, in
            training mode plus the router losses times their factors.

        Raises:
            ValueError: A sequence longer than `max_position_embeddings`.
        """
        hidden, router_losses = self.model(input_ids)
        logits = self._head(hidden)
        if labels is None:
            return logits
        loss, self.last_losses = training_loss(
            self.config,
            cross_entropy(logits, labels),
            router_losses,
            adds_router_losses=self.training,
        )
        return loss, logits

    def _head(self, hidden: Tensor) -> Tensor:
        if self.lm_head is not None:
            return self.lm_head(hidden)
        return tied_head(hidden, self.model.embed_tokens.weight)


def adjust_correction_biases(model: nn.Layer, rate: float) -> None:
    """Call `MoE.adjust_correction_bias(rate)` on every MoE layer."""
    for layer in model.sublayers():
        if isinstance(layer, MoE):
            layer.adjust_correction_bias(rate)


def expert_balance(model: nn.Layer) -> dict[str, float]:
    """How evenly tokens went to the experts since the biases' last change.

    Waits for the device. Under several processes the counts are those of all.

    Returns:
        ``expert_max_violation``: tokens of the busiest expert above the mean,
        as a share of the mean, in the worst layer (MaxVio of Wang et al. 2024);
        ``idle_experts``: experts without a token, over all layers. Empty where
        no token was counted, as without `moe_correction_bias`.
    """
    loads = [
        layer.expert_load.numpy()
        for layer in model.sublayers(include_self=True)
        if isinstance(layer, MoE) and layer.has_correction_bias
    ]
    if not np.any(loads):
        return {}
    load = np.stack(loads)
    return {
        "expert_max_violation": float((load.max(1) / load.mean(1)).max() - 1),
        "idle_experts": int(np.count_nonzero(load == 0)),
    }
