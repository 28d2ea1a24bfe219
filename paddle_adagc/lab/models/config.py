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
"""Architecture options of the decoder, validated."""

import inspect
import math
from collections.abc import Sequence
from typing import Any

from paddlenlp.transformers import PretrainedConfig

ROPE_LAYOUTS = ("half", "interleaved")
FLOAT8_LINEARS = ("attention", "mlp", "experts")
INITIALIZATIONS = ("normal", "scaled_embed", "wesar")
NORM_PRECISIONS = ("float32", "bfloat16")

_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "moe_intermediate_size",
)
_NOT_NEGATIVE = ("moe_num_experts", "moe_num_shared_experts")
_FLAGS = (
    "qk_norm",
    "tie_word_embeddings",
    "moe_norm_topk_prob",
    "moe_correction_bias",
)
_WITH_EXPERTS_ONLY = (
    "moe_num_shared_experts",
    "moe_layers",
    "moe_correction_bias",
    "router_aux_loss_coef",
    "router_z_loss_coef",
)


class DecoderConfig(PretrainedConfig):
    """Options of `DecoderForCausalLM`; the defaults are a byte-level toy.

    Args:
        vocab_size: Number of tokens.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of a dense SwiGLU feed-forward network.
        num_hidden_layers: Number of decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads, a divisor of the query
            heads; None for as many.
        head_dim: Width of a head, even; None for
            `hidden_size / num_attention_heads`.
        max_position_embeddings: Longest sequence, in tokens.
        rope_theta: Base of the rotary frequencies.
        rope_layout: Which two components of a head a rotation turns: "half"
            pairs i with i + head_dim / 2 (Llama), "interleaved" pairs 2i
            with 2i + 1 (ERNIE-4.5).
        rms_norm_eps: Added to the mean square in every RMSNorm.
        rms_norm_precision: Of the arithmetic inside of every RMSNorm,
            "float32", or "bfloat16" (see `rms_norm`).
        qk_norm: RMSNorm over each query and key head before the rotation
            (Qwen3).
        tie_word_embeddings: The head multiplies by the embedding's weight.
        initialization: How weight matrices start, and what they are
            multiplied by (see `initialization`): "normal", "scaled_embed"
            (Takase et al. 2023) or "wesar" (Nishida et al. 2024).
        initializer_range: Standard deviation of every weight matrix at the
            start; of "normal" alone.
        moe_num_experts: Routed experts of an MoE layer; 0 for a dense model.
        moe_top_k: Experts that a token goes to.
        moe_intermediate_size: Width of an expert; None for
            `intermediate_size`.
        moe_num_shared_experts: Experts that every token goes to; they are
            one network of this many times the width.
        moe_layers: Indices of the layers with experts; None for all.
        moe_norm_topk_prob: A token's routing weights sum to 1.
        moe_correction_bias: A bias per expert, not trained, that takes part
            in the choice of experts and not in their weights (ERNIE-4.5's
            `moe_statics.e_score_correction_bias`).
        router_aux_loss_coef: Factor of the load-balancing loss.
        router_z_loss_coef: Factor of the router z-loss.
        float8_linears: Linear maps with products in FP8 (see
            `fp8.linear`): "attention" is the projections of queries, keys,
            values and outputs, "mlp" the dense feed-forward networks,
            "experts" the routed and the shared ones. The router, the norms,
            the embedding and the head never are.
        **kwargs: PaddleNLP's own keys (`dtype`, `tensor_parallel_degree`,
            ...). It also accepts misspelled ones: compare a user's keys with
            `field_names()` first.

    Raises:
        ValueError: A value out of range, or two that do not fit.
    """

    model_type = "adagc_decoder"

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        hidden_size: int = 64,
        intermediate_size: int = 176,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 4,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_position_embeddings: int = 2048,
        rope_theta: float = 10000.0,
        rope_layout: str = "half",
        rms_norm_eps: float = 1e-5,
        rms_norm_precision: str = "float32",
        qk_norm: bool = False,
        tie_word_embeddings: bool = False,
        initialization: str = "normal",
        initializer_range: float = 0.02,
        moe_num_experts: int = 0,
        moe_top_k: int = 2,
        moe_intermediate_size: int | None = None,
        moe_num_shared_experts: int = 0,
        moe_layers: Sequence[int] | None = None,
        moe_norm_topk_prob: bool = True,
        moe_correction_bias: bool = False,
        router_aux_loss_coef: float = 0.0,
        router_z_loss_coef: float = 0.0,
        float8_linears: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        _check_int("hidden_size", hidden_size, minimum=1)
        _check_int("num_attention_heads", num_attention_heads, minimum=1)
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = (
            num_attention_heads
            if num_key_value_heads is None
            else num_key_value_heads
        )
        for name, value in (
            ("moe_layers", moe_layers),
            ("float8_linears", float8_linears),
        ):
            if isinstance(value, str) or not isinstance(value, Sequence | None):
                raise ValueError(f"{name}={value!r}: use a list.")
        self.head_dim = (
            hidden_size // num_attention_heads if head_dim is None else head_dim
        )
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.rope_layout = rope_layout
        self.rms_norm_eps = rms_norm_eps
        self.rms_norm_precision = rms_norm_precision
        self.qk_norm = qk_norm
        self.initialization = initialization
        self.initializer_range = initializer_range
        self.moe_num_experts = moe_num_experts
        self.moe_top_k = moe_top_k
        self.moe_intermediate_size = (
            intermediate_size
            if moe_intermediate_size is None
            else moe_intermediate_size
        )
        self.moe_num_shared_experts = moe_num_shared_experts
        self.moe_layers = None if moe_layers is None else sorted(moe_layers)
        self.moe_norm_topk_prob = moe_norm_topk_prob
        self.moe_correction_bias = moe_correction_bias
        self.router_aux_loss_coef = router_aux_loss_coef
        self.router_z_loss_coef = router_z_loss_coef
        self.float8_linears = list(float8_linears)
        self._check_ranges()
        self._check_heads(explicit_head_dim=head_dim is not None)
        self._check_experts()

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Names of the architecture options, in the order of the signature."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return tuple(
            p.name
            for p in parameters
            if p.kind is inspect.Parameter.KEYWORD_ONLY
        )

    def is_moe_layer(self, index: int) -> bool:
        """Whether the layer with this index (from 0) has experts."""
        if self.moe_num_experts == 0:
            return False
        return self.moe_layers is None or index in self.moe_layers

    def _check_ranges(self) -> None:
        for name in _POSITIVE:
            _check_int(name, getattr(self, name), minimum=1)
        for name in _NOT_NEGATIVE:
            _check_int(name, getattr(self, name), minimum=0)
        for name in ("rope_theta", "rms_norm_eps"):
            _check_number(name, getattr(self, name), zero=False)
        for name in (
            "initializer_range",
            "router_aux_loss_coef",
            "router_z_loss_coef",
        ):
            _check_number(name, getattr(self, name), zero=True)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: use true or false."
                )
        for name, choices in (
            ("rope_layout", ROPE_LAYOUTS),
            ("initialization", INITIALIZATIONS),
            ("rms_norm_precision", NORM_PRECISIONS),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: use one of {choices}."
                )
        if self.initialization == "wesar" and self.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings=True with initialization='wesar': "
                "embedding and head have scales of their own, untie them."
            )
        for kind in self.float8_linears:
            if kind not in FLOAT8_LINEARS:
                raise ValueError(
                    f"float8_linears holds {kind!r}: use a list of "
                    f"{FLOAT8_LINEARS}."
                )

    def _check_heads(self, explicit_head_dim: bool) -> None:
        heads = self.num_attention_heads
        if not explicit_head_dim and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={heads}: change one, or give head_dim."
            )
        if heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} does not "
                f"divide num_attention_heads={heads}: use a divisor."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd: rotary embeddings turn "
                "pairs, use an even width."
            )

    def _check_experts(self) -> None:
        if self.moe_num_experts == 0:
            for name in _WITH_EXPERTS_ONLY:
                if getattr(self, name):
                    raise ValueError(
                        f"{name}={getattr(self, name)!r} with "
                        "moe_num_experts=0: give moe_num_experts, or leave "
                        "it out."
                    )
            return
        _check_int("moe_top_k", self.moe_top_k, minimum=1)
        if self.moe_top_k > self.moe_num_experts:
            raise ValueError(
                f"moe_top_k={self.moe_top_k} is more than "
                f"moe_num_experts={self.moe_num_experts}: lower it."
            )
        for index in self.moe_layers or ():
            _check_int("moe_layers", index, minimum=0)
            if index >= self.num_hidden_layers:
                raise ValueError(
                    f"moe_layers holds {index}: layers are numbered 0 to "
                    f"{self.num_hidden_layers - 1}."
                )


def _check_int(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name}={value!r}: use an integer >= {minimum}.")


def _check_number(name: str, value: Any, zero: bool) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and math.isfinite(value) and (value > 0 or (zero and value == 0)):
        return
    raise ValueError(
        f"{name}={value!r}: use a finite number {'>=' if zero else '>'} 0."
    )
