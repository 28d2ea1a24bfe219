# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Architecture options of the decoder, and the base classes of all models.

These are PaddleNLP's, or PaddleFormers' without it: then models can be planned
and checked, not trained.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from adagc_lab.section import (
    Count,
    Flag,
    Natural,
    NonNegative,
    Positive,
    Section,
    mistakes,
)
from paddle_adagc.checks import check_choice

if importlib.util.find_spec("paddlenlp") is None:
    from paddleformers.transformers import PretrainedConfig as _Config
    from paddleformers.transformers import PretrainedModel, register_base_model

    class PretrainedConfig(_Config):
        """PaddleFormers' config, which also takes PaddleNLP's names."""

        attribute_map: ClassVar = {
            **_Config.attribute_map,
            "tensor_parallel_degree": "tensor_model_parallel_size",
        }

else:
    from paddlenlp.transformers import (  # type: ignore[no-redef]
        PretrainedConfig,
        PretrainedModel,
        register_base_model,
    )

__all__ = [
    "AttentionOptions",
    "CheckedConfig",
    "DecoderConfig",
    "DecoderOptions",
    "ExpertOptions",
    "PretrainedModel",
    "register_base_model",
]

Float8Linear = Literal["attention", "mlp", "experts"]
FLOAT8_LINEARS = get_args(Float8Linear)

_WITH_EXPERTS_ONLY = (
    "moe_num_shared_experts",
    "moe_correction_bias",
    "router_aux_loss_coef",
)


class CheckedConfig(PretrainedConfig):
    """A PaddleNLP config with the options of a section as attributes.

    PaddleNLP's own keys (`dtype`, `tensor_parallel_degree`, ...) may be
    misspelt; `from_fields` refuses that.
    """

    options: ClassVar[type[Section]]

    def __init__(self, **values: Any) -> None:
        names = self.field_names()
        own = {name: values.pop(name) for name in names if name in values}
        checked = self.options(**own).model_dump()
        if "tie_word_embeddings" in checked:
            values["tie_word_embeddings"] = checked["tie_word_embeddings"]
        super().__init__(**values)
        for name, value in checked.items():
            setattr(self, name, value)

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the architecture's options, in their order."""
        return tuple(cls.options.model_fields)

    @classmethod
    def from_fields(
        cls,
        fields: Mapping[str, Any],
        presets: Mapping[str, Mapping[str, Any]],
        **layout: Any,
    ) -> Any:
        """Make the config that a run's `model` section describes.

        The section's options replace those of the preset that it names;
        `architecture` is ignored. `layout` holds PaddleNLP's own keys. An
        unknown preset or option is refused with the nearest name.
        """
        values = {k: v for k, v in fields.items() if k != "architecture"}
        preset = values.pop("preset", None)
        if preset is not None:
            check_choice("model.preset", preset, presets)
            values = {**presets[preset], **values}
        try:
            cls.options(**values)
        except ValidationError as error:
            lines = mistakes(error, cls.options, "model.")
            raise ValueError(lines) from error
        return cls(**values, **layout)


class AttentionOptions(Section):
    """Options of the attention of a decoder."""

    num_attention_heads: Count = 4
    """Number of query heads."""

    num_key_value_heads: Count | None = None
    """Number of key and of value heads, a divisor of the number of query
    heads; None: as many as query heads."""

    head_dim: Count | None = None
    """Width of a head, even; None: `hidden_size / num_attention_heads`."""

    rope_theta: Positive = 10000.0
    """Base of the rotary frequencies."""

    rope_layout: Literal["half", "interleaved"] = "half"
    """Pairs of components that the rotary embedding turns: "half" pairs i with
    i + head_dim / 2 (Llama), "interleaved" pairs 2i with 2i + 1 (ERNIE-4.5).
    """

    qk_norm: Flag = False
    """RMSNorm over each query and key head before the rotation (Qwen3)."""


class ExpertOptions(Section):
    """Options of the experts of a decoder, and of their router."""

    moe_num_experts: Natural = 0
    """Routed experts of every layer; 0: a dense model."""

    moe_top_k: Count = 2
    """Experts that a token goes to."""

    moe_intermediate_size: Count | None = None
    """Width of an expert; None: `intermediate_size`."""

    moe_num_shared_experts: Natural = 0
    """Experts that every token goes to; they are one network of this many
    times the width."""

    moe_correction_bias: Flag = False
    """Each expert has a bias, not trained, that takes part in the choice of
    experts but not in their weights (ERNIE-4.5's
    `moe_statics.e_score_correction_bias`)."""

    router_aux_loss_coef: NonNegative = 0.0
    """Factor of the load-balancing loss."""


class DecoderOptions(AttentionOptions, ExpertOptions):
    """Options of `DecoderForCausalLM`; the defaults are a byte-level toy."""

    vocab_size: Count = 256
    """Number of tokens."""

    hidden_size: Count = 64
    """Width of the residual stream."""

    intermediate_size: Count = 176
    """Width of a dense SwiGLU feed-forward network."""

    num_hidden_layers: Count = 3
    """Number of decoder layers."""

    max_position_embeddings: Count = 2048
    """Longest sequence, in tokens."""

    rms_norm_eps: Positive = 1e-5
    """Added to the mean square in every RMSNorm."""

    rms_norm_precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the arithmetic inside of every RMSNorm (see `rms_norm`)."""

    tie_word_embeddings: Flag = False
    """The head multiplies by the embedding's weight."""

    initialization: Literal["normal", "scaled_embed", "wesar"] = "normal"
    """How weight matrices start, and what multiplies them (see
    `layers`): "scaled_embed" is Takase et al. 2023, "wesar" is Nishida
    et al. 2024."""

    initializer_range: NonNegative = 0.02
    """Standard deviation of every weight matrix at the start; read for
    "normal" alone."""

    float8_linears: list[Float8Linear] = Field(default_factory=list)
    """Linear maps whose products are in FP8 (see `fp8`): "attention"
    is the projections of queries, keys, values and outputs, "mlp" the dense
    feed-forward networks, "experts" the routed and the shared experts. The
    router, the norms, the embedding and the head never are."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        heads, experts = self.num_attention_heads, self.moe_num_experts
        keys = self.num_key_value_heads or heads
        width = self.head_dim or self.hidden_size // heads
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={heads}: change one, or give head_dim."
            )
        if heads % keys:
            raise ValueError(
                f"num_key_value_heads={keys} does not divide "
                f"num_attention_heads={heads}: use a divisor."
            )
        if width % 2:
            raise ValueError(
                f"head_dim={width} is odd: rotary embeddings turn pairs, use "
                "an even width."
            )
        if experts and self.moe_top_k > experts:
            raise ValueError(
                f"moe_top_k={self.moe_top_k} is more than "
                f"moe_num_experts={experts}: lower it."
            )
        for name in _WITH_EXPERTS_ONLY:
            if getattr(self, name) and not experts:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} with moe_num_experts=0: "
                    "give moe_num_experts, or leave it out."
                )
        if self.initialization == "wesar" and self.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings=True with initialization='wesar': "
                "embedding and head have scales of their own, untie them."
            )
        object.__setattr__(self, "num_key_value_heads", keys)
        object.__setattr__(self, "head_dim", width)
        if self.moe_intermediate_size is None:
            width = self.intermediate_size
            object.__setattr__(self, "moe_intermediate_size", width)
        return self


class DecoderConfig(CheckedConfig):
    """PaddleNLP's config with the attributes of `DecoderOptions`."""

    model_type = "adagc_decoder"
    options = DecoderOptions
