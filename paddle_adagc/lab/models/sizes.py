# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names, shapes and counts of the decoder's parameters; allocates nothing."""

import dataclasses
import math
import re

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.initialization import ALPHA

Shape = tuple[int, ...]

_FUSED_AWAY = ("k_proj.weight", "v_proj.weight", "up_proj.weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Counts of a whole model."""

    parameters: int
    """Trained values."""

    active_parameters: int
    """Values that take part in the product for one token."""

    tensors: int
    tensors_without_routers: int
    """The paper's count, (9 + 3E) L + 3 for ERNIE."""

    tensors_if_fused: int | None = None
    """With q, k, v as one tensor, and gate and up as another: what
    PaddleFormers trains under ``fuse_attn_ffn``. None: the model has no such
    form."""

    @property
    def gamma_bytes(self) -> int:
        """Bytes of the float32 reference norms of all tensors."""
        return 4 * self.tensors


def parameter_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Return name and shape of every parameter of `DecoderForCausalLM(config)`.

    Names and order are those of `named_parameters()`, matrices are stored
    [in, out]; shapes are those without tensor parallelism. The correction
    bias of the router is a buffer and not listed.
    """
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden)
    }
    for index in range(config.num_hidden_layers):
        layer = {
            **_attention_shapes(config),
            **_feed_forward_shapes(config, index),
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        for name, shape in layer.items():
            shapes[f"model.layers.{index}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (hidden, config.vocab_size)
    return _with_alphas(shapes) if config.initialization == "wesar" else shapes


def model_size(config: DecoderConfig) -> ModelSize:
    """Count the decoder's parameters and tensors."""
    names = parameter_shapes(config)
    return ModelSize(
        parameters=num_parameters(config),
        active_parameters=num_active_parameters(config),
        tensors=len(names),
        tensors_without_routers=num_tensors(config, routers=False),
        tensors_if_fused=sum(not name.endswith(_FUSED_AWAY) for name in names),
    )


def num_parameters(config: DecoderConfig) -> int:
    """Count the trained values; a tied embedding counts once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def num_active_parameters(config: DecoderConfig) -> int:
    """Count the values that take part in the product for one token.

    The head counts, tied or not; the embedding lookup reads a single row and
    does not; of the routed experts `moe_top_k` count. This is the "A1.4B" of
    ERNIE 10B-A1.4B.
    """
    shapes = parameter_shapes(config)
    lookup = math.prod(shapes["model.embed_tokens.weight"])
    routed = sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if re.search(r"\.experts\.\d+\.", name)
    )
    active = num_parameters(config) - routed
    if routed:
        active += routed * config.moe_top_k // config.moe_num_experts
    return active if config.tie_word_embeddings else active - lookup


def num_tensors(config: DecoderConfig, routers: bool = True) -> int:
    """Count the parameter tensors, with or without those of routers."""
    names = parameter_shapes(config)
    return sum(routers or ".mlp.gate." not in n for n in names)


def _with_alphas(shapes: dict[str, Shape]) -> dict[str, Shape]:
    """Insert a scale after every matrix."""
    result = {}
    for name, shape in shapes.items():
        result[name] = shape
        if len(shape) == 2:
            result[name.removesuffix("weight") + ALPHA] = (1,)
    return result


def _attention_shapes(config: DecoderConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "self_attn.q_proj.weight": (hidden, queries),
        "self_attn.k_proj.weight": (hidden, keys),
        "self_attn.v_proj.weight": (hidden, keys),
        "self_attn.o_proj.weight": (queries, hidden),
    }
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _feed_forward_shapes(config: DecoderConfig, index: int) -> dict[str, Shape]:
    hidden = config.hidden_size
    if not config.is_moe_layer(index):
        return _swiglu_shapes("mlp", hidden, config.intermediate_size)
    shapes: dict[str, Shape] = {
        "mlp.gate.weight": (hidden, config.moe_num_experts)
    }
    width = config.moe_intermediate_size
    for expert in range(config.moe_num_experts):
        shapes |= _swiglu_shapes(f"mlp.experts.{expert}", hidden, width)
    if config.moe_num_shared_experts:
        width *= config.moe_num_shared_experts
        shapes |= _swiglu_shapes("mlp.shared_experts", hidden, width)
    return shapes


def _swiglu_shapes(prefix: str, hidden: int, width: int) -> dict[str, Shape]:
    return {
        f"{prefix}.gate_proj.weight": (hidden, width),
        f"{prefix}.up_proj.weight": (hidden, width),
        f"{prefix}.down_proj.weight": (width, hidden),
    }
