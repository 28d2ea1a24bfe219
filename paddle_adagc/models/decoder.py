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
"""The decoder: Llama-2, Qwen3, Mixtral and ERNIE-4.5 MoE by options."""

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn
from paddle.distributed import fleet
from paddlenlp.transformers import PretrainedModel, register_base_model

from paddle_adagc.models.attention import Attention
from paddle_adagc.models.config import DecoderConfig
from paddle_adagc.models.layers import (
    GatedMLP,
    RMSNorm,
    as_float32,
    column_linear,
    enter_tensor_parallel,
    tensor_parallel_degree,
    token_embedding,
)
from paddle_adagc.models.moe import MoE

IGNORED_LABEL = -100


class DecoderPretrainedModel(PretrainedModel):
    """What PaddleNLP needs to know to save and load the decoder."""

    config_class = DecoderConfig
    base_model_prefix = "model"


class DecoderLayer(nn.Layer):
    """Pre-norm attention and feed-forward network, each with a residual."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.has_experts = config.is_moe_layer(index)
        self.mlp: nn.Layer = (
            MoE(config)
            if self.has_experts
            else GatedMLP(config, config.intermediate_size)
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, config.rms_norm_eps
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map [batch, length, hidden] to the same shape.

        Returns:
            The hidden states, and the router losses of `MoE.forward`; None
            in a dense layer.
        """
        x = x + self.self_attn(self.input_layernorm(x))
        normed = self.post_attention_layernorm(x)
        if not self.has_experts:
            return x + self.mlp(normed), None
        mixed, router_losses = self.mlp(normed)
        return x + mixed, router_losses


@register_base_model
class DecoderModel(DecoderPretrainedModel):
    """Embedding, decoder layers and final norm, without the head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        _check_tensor_parallel(config)
        self.embed_tokens = token_embedding(config)
        self.layers = nn.LayerList(
            [DecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.enable_recompute = False

    def get_input_embeddings(self) -> nn.Layer:
        """The embedding layer (PaddleNLP's interface)."""
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
        _check_length(input_ids, self.config.max_position_embeddings)
        x = self.embed_tokens(input_ids)
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
        return self.norm(x), mean


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
        self.is_parallel = tensor_parallel_degree() > 1
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
        loss = lm_loss = self._cross_entropy(logits, labels)
        self.last_losses = {"lm_loss": lm_loss.detach()}
        if router_losses is not None:
            balance, z_loss = paddle.unbind(router_losses)
            self.last_losses["router_aux_loss"] = balance.detach()
            self.last_losses["router_z_loss"] = z_loss.detach()
            if self.training:
                loss = (
                    lm_loss
                    + self.config.router_aux_loss_coef * balance
                    + self.config.router_z_loss_coef * z_loss
                )
        return loss, logits

    def _head(self, hidden: Tensor) -> Tensor:
        if self.lm_head is not None:
            return self.lm_head(hidden)
        hidden = enter_tensor_parallel(hidden)
        weight = self.model.embed_tokens.weight
        return paddle.matmul(hidden, weight, transpose_y=True)

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over the labels that count, in float32; 0 if none does.

        `F.cross_entropy` with a negative `ignore_index` would divide by all
        labels, the ignored ones too.
        """
        logits = as_float32(logits).reshape([-1, logits.shape[-1]])
        labels = labels.reshape([-1, 1])
        if self.is_parallel:
            losses = fleet.meta_parallel.ParallelCrossEntropy(
                ignore_index=IGNORED_LABEL
            )(logits, labels)
        else:
            losses = F.cross_entropy(
                logits, labels, ignore_index=IGNORED_LABEL, reduction="none"
            )
        counted = (labels != IGNORED_LABEL).astype("float32").sum()
        # Paddle's vectorised CPU softmax makes log(vocab_size) out of NaN
        # logits: a model that is lost would look alive.
        lost = 0.0 * logits.detach().sum()
        return losses.sum() / counted.clip(min=1.0) + lost


def adjust_correction_biases(model: nn.Layer, rate: float) -> None:
    """Call `MoE.adjust_correction_bias(rate)` on every MoE layer."""
    for layer in model.sublayers():
        if isinstance(layer, MoE):
            layer.adjust_correction_bias(rate)


def _check_length(input_ids: Tensor, longest: int) -> None:
    length = input_ids.shape[1]
    if length > longest:
        raise ValueError(
            f"input_ids holds sequences of {length} tokens and "
            f"max_position_embeddings={longest}: shorten them or raise it."
        )


def _check_tensor_parallel(config: DecoderConfig) -> None:
    """Refuse widths that the tensor-parallel ranks cannot share evenly."""
    degree = tensor_parallel_degree()
    if max(config.tensor_parallel_degree, 1) > degree:
        raise ValueError(
            f"tensor_parallel_degree={config.tensor_parallel_degree} and "
            f"fleet's model-parallel group has {degree} ranks: call "
            "fleet.init with mp_degree first."
        )
    for name in (
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
    ):
        if getattr(config, name) % degree:
            raise ValueError(
                f"{name}={getattr(config, name)} is not a multiple of the "
                f"{degree} tensor-parallel ranks: change one of them."
            )
