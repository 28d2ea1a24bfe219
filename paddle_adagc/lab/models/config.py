# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Architecture options of the decoder, and what checks a model's options."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import model_validator
from typing_extensions import Self

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.models.pretrained import PretrainedConfig
from paddle_adagc.lab.section import (
    Count,
    Flag,
    Natural,
    NonNegative,
    Positive,
    section,
)

Float8Linear = Literal["attention", "mlp", "experts"]
FLOAT8_LINEARS = get_args(Float8Linear)

_WITH_EXPERTS_ONLY = (
    "moe_num_shared_experts",
    "moe_layers",
    "moe_correction_bias",
    "router_aux_loss_coef",
)


class CheckedConfig(PretrainedConfig):
    """A PaddleNLP config with the options of a section as attributes.

    PaddleNLP's own keys (`dtype`, `tensor_parallel_degree`, ...) may be
    misspelt; `from_fields` refuses that.
    """

    options: ClassVar[type[Any]]

    def __init__(self, **values: Any) -> None:
        names = self.field_names()
        own = {name: values.pop(name) for name in names if name in values}
        checked = dataclasses.asdict(self.options(**own))
        if "tie_word_embeddings" in checked:
            values["tie_word_embeddings"] = checked["tie_word_embeddings"]
        super().__init__(**values)
        for name, value in checked.items():
            setattr(self, name, value)

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the names of the architecture's options, in their order."""
        return tuple(field.name for field in dataclasses.fields(cls.options))

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
        except ValueError as error:
            lines = [f"model: {line}" for line in str(error).splitlines()]
            raise ValueError("\n".join(lines)) from error
        return cls(**values, **layout)


@section
class DecoderOptions:
    """Options of `DecoderForCausalLM`; the defaults are a byte-level toy."""

    vocab_size: Count = 256
    """Number of tokens."""

    hidden_size: Count = 64
    """Width of the residual stream."""

    intermediate_size: Count = 176
    """Width of a dense SwiGLU feed-forward network."""

    num_hidden_layers: Count = 3
    """Number of decoder layers."""

    num_attention_heads: Count = 4
    """Number of query heads."""

    num_key_value_heads: Count | None = None
    """Number of key and of value heads, a divisor of the number of query
    heads; None: as many as query heads."""

    head_dim: Count | None = None
    """Width of a head, even; None: `hidden_size / num_attention_heads`."""

    max_position_embeddings: Count = 2048
    """Longest sequence, in tokens."""

    rope_theta: Positive = 10000.0
    """Base of the rotary frequencies."""

    rope_layout: Literal["half", "interleaved"] = "half"
    """Pairs of components that the rotary embedding turns: "half" pairs i with
    i + head_dim / 2 (Llama), "interleaved" pairs 2i with 2i + 1 (ERNIE-4.5).
    """

    rms_norm_eps: Positive = 1e-5
    """Added to the mean square in every RMSNorm."""

    rms_norm_precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the arithmetic inside of every RMSNorm (see `rms_norm`)."""

    qk_norm: Flag = False
    """RMSNorm over each query and key head before the rotation (Qwen3)."""

    tie_word_embeddings: Flag = False
    """The head multiplies by the embedding's weight."""

    initialization: Literal["normal", "scaled_embed", "wesar"] = "normal"
    """How weight matrices start, and what multiplies them (see
    `initialization`): "scaled_embed" is Takase et al. 2023, "wesar" is Nishida
    et al. 2024."""

    initializer_range: NonNegative = 0.02
    """Standard deviation of every weight matrix at the start; read for
    "normal" alone."""

    moe_num_experts: Natural = 0
    """Routed experts of an MoE layer; 0: a dense model."""

    moe_top_k: Count = 2
    """Experts that a token goes to."""

    moe_intermediate_size: Count | None = None
    """Width of an expert; None: `intermediate_size`."""

    moe_num_shared_experts: Natural = 0
    """Experts that every token goes to; they are one network of this many
    times the width."""

    moe_layers: list[Natural] | None = None
    """Indices of the layers with experts, from 0; None: all layers."""

    moe_correction_bias: Flag = False
    """Each expert has a bias, not trained, that takes part in the choice of
    experts but not in their weights (ERNIE-4.5's
    `moe_statics.e_score_correction_bias`)."""

    router_aux_loss_coef: NonNegative = 0.0
    """Factor of the load-balancing loss."""

    float8_linears: list[Float8Linear] = dataclasses.field(default_factory=list)
    """Linear maps whose products are in FP8 (see `fp8.linear`): "attention"
    is the projections of queries, keys, values and outputs, "mlp" the dense
    feed-forward networks, "experts" the routed and the shared experts. The
    router, the norms, the embedding and the head never are."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_heads()
        self._check_experts()
        if self.initialization == "wesar" and self.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings=True with initialization='wesar': "
                "embedding and head have scales of their own, untie them."
            )
        heads = self.num_attention_heads
        derived = {
            "num_key_value_heads": self.num_key_value_heads or heads,
            "head_dim": self.head_dim or self.hidden_size // heads,
            "moe_intermediate_size": (
                self.moe_intermediate_size or self.intermediate_size
            ),
            "moe_layers": self.moe_layers and sorted(self.moe_layers),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        return self

    def _check_heads(self) -> None:
        heads = self.num_attention_heads
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={heads}: change one, or give head_dim."
            )
        if heads % (self.num_key_value_heads or heads):
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} does not "
                f"divide num_attention_heads={heads}: use a divisor."
            )
        width = self.head_dim or self.hidden_size // heads
        if width % 2:
            raise ValueError(
                f"head_dim={width} is odd: rotary embeddings turn pairs, use "
                "an even width."
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
        if self.moe_top_k > self.moe_num_experts:
            raise ValueError(
                f"moe_top_k={self.moe_top_k} is more than "
                f"moe_num_experts={self.moe_num_experts}: lower it."
            )
        for index in self.moe_layers or ():
            if index >= self.num_hidden_layers:
                raise ValueError(
                    f"moe_layers holds {index}: layers are numbered 0 to "
                    f"{self.num_hidden_layers - 1}."
                )


class DecoderConfig(CheckedConfig):
    """PaddleNLP's config with the attributes of `DecoderOptions`."""

    model_type = "adagc_decoder"
    options = DecoderOptions

    def is_moe_layer(self, index: int) -> bool:
        """Tell whether the layer with this index (from 0) has experts."""
        if self.moe_num_experts == 0:
            return False
        return self.moe_layers is None or index in self.moe_layers

    @property
    def layers_with_experts(self) -> list[int]:
        """Indices of the layers with experts, from 0."""
        layers = range(self.num_hidden_layers)
        return [index for index in layers if self.is_moe_layer(index)]
