# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder and its loss: Llama-2, Qwen3, Mixtral, ERNIE-4.5 by options."""

from typing import TypeAlias

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.distributed import fleet

from adagc_lab.models.attention import Attention
from adagc_lab.models.config import (
    DecoderConfig,
    PretrainedModel,
    register_base_model,
)
from adagc_lab.models.layers import (
    GatedMLP,
    RMSNorm,
    as_float32,
    linear,
    tied_head,
    token_embedding,
)
from adagc_lab.models.moe import MoE
from paddle_adagc.parallel.topology import read_topology

Flow: TypeAlias = tuple[Tensor, Tensor]
"""What goes from layer to layer: hidden states [batch, length, hidden], and the
sum of the router losses so far, [1], 0 without experts."""

IGNORED_LABEL = -100  # label of a position that has no loss


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels [...] other than -100, in float32; 0 if none is.

    `logits` are [..., vocab], of this TP rank's share of the vocabulary.
    (`F.cross_entropy` would divide by the ignored labels, too.)
    """
    logits = as_float32(logits).reshape([-1, logits.shape[-1]])
    labels = labels.reshape([-1, 1])
    if read_topology().model.size > 1:
        losses = fleet.meta_parallel.ParallelCrossEntropy(
            ignore_index=IGNORED_LABEL
        )(logits, labels)
    else:
        losses = F.cross_entropy(
            logits, labels, ignore_index=IGNORED_LABEL, reduction="none"
        )
    counted = (labels != IGNORED_LABEL).astype("float32").sum()
    # Paddle's vectorised CPU softmax makes log(vocab_size) out of NaN
    # logits: a model that is lost would look alive. (It also cuts logits at 64
    # below the largest, so that a loss is at most 64 + log(vocab_size).)
    lost = 0.0 * logits.detach().sum()
    return losses.sum() / counted.clip(min=1.0) + lost


class DecoderPretrainedModel(PretrainedModel):
    """Settings by which PaddleNLP saves and loads the decoder."""

    config_class = DecoderConfig
    base_model_prefix = "model"


class DecoderLayer(nn.Layer):
    """Pre-norm attention and feed-forward network, each with a residual."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp: nn.Layer
        if config.moe_num_experts:
            self.mlp = MoE(config)
        else:
            self.mlp = GatedMLP(config, config.intermediate_size)
        self.input_layernorm = RMSNorm(config)
        self.post_attention_layernorm = RMSNorm(config)

    def forward(self, flow: Flow) -> Flow:
        """Map hidden states to the same shape; add the router loss."""
        x, router_losses = flow
        x = x + self.self_attn(self.input_layernorm(x))
        normed = self.post_attention_layernorm(x)
        if not isinstance(self.mlp, MoE):
            return x + self.mlp(normed), router_losses
        mixed, router_loss = self.mlp(normed)
        return x + mixed, router_losses + router_loss


@register_base_model
class DecoderModel(DecoderPretrainedModel):
    """Embedding, decoder layers and final norm, without the head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.embed_tokens = token_embedding(config)
        self.layers = nn.LayerList(
            [DecoderLayer(config) for _ in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config)

    def forward(self, input_ids: Tensor) -> Flow:
        """Hidden states [batch, length, hidden] after the final norm.

        And the sum of the layers' router losses, [1].
        """
        length = input_ids.shape[1]
        longest = self.config.max_position_embeddings
        if length > longest:
            raise ValueError(
                f"input_ids holds sequences of {length} tokens and "
                f"max_position_embeddings={longest}: shorten them or raise it."
            )
        flow = self.embed_tokens(input_ids), paddle.zeros([1], "float32")
        for layer in self.layers:
            flow = layer(flow)
        return self.norm(flow[0]), flow[1]


class DecoderForCausalLM(DecoderPretrainedModel):
    """Language model over `DecoderConfig`, for PaddleNLP's Trainer.

    `last_loss` is the last cross-entropy, detached; None before the first
    forward with labels.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = DecoderModel(config)
        self.lm_head: nn.Layer | None = None
        if not config.tie_word_embeddings:
            self.lm_head = linear(
                config, config.hidden_size, config.vocab_size, "columns"
            )
        self.last_loss: Tensor | None = None

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map [batch, length] to logits, or with labels to (loss, logits).

        Labels are already aligned: `labels[:, t]` is the token that follows
        `input_ids[:, t]`; -100 does not count. Logits [batch, length, vocab]
        are of this TP rank's share of the vocabulary. The loss is the mean
        cross-entropy, in training mode plus the router loss.
        """
        hidden, router_losses = self.model(input_ids)
        if self.lm_head is not None:
            logits = self.lm_head(hidden)
        else:
            logits = tied_head(hidden, self.model.embed_tokens.weight)
        if labels is None:
            return logits
        loss = cross_entropy(logits, labels)
        self.last_loss = loss.detach()
        if self.training:
            mean = router_losses.squeeze() / self.config.num_hidden_layers
            loss = loss + self.config.router_aux_loss_coef * mean
        return loss, logits
