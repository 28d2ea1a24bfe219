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
"""Hugging Face transformers' names and config keys for our decoder."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paddle_adagc.models.config import DecoderConfig
from paddle_adagc.models.sizes import parameter_shapes

Array = npt.NDArray[np.generic]

# Config keys that must have this value: the decoder has no such option.
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "sliding_window": None,
}
_SHARED_KEYS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
)
# A matrix of ours is [in, out], theirs is [out, in]; the lookup is the same.
_MIXTRAL_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


class HFTensor(NamedTuple):
    """Where a tensor lies in a Hugging Face checkpoint."""

    name: str
    transpose: bool
    """Theirs is the transpose of ours."""


def config_from_hf(options: Mapping[str, Any]) -> DecoderConfig:
    """Convert a `config.json` of a supported model.

    Args:
        options: The parsed file; `model_type` is "llama", "qwen3", "mixtral"
            or "ernie4_5_moe".

    Raises:
        ValueError: Another model, or an option that the decoder lacks.
    """
    family = options.get("model_type")
    if family not in _FAMILY_OPTIONS:
        raise ValueError(
            f"model_type={family!r}: use one of {sorted(_FAMILY_OPTIONS)}."
        )
    for key, value in _FIXED.items():
        if options.get(key, value) != value:
            raise ValueError(
                f"{key}={options[key]!r}: the decoder supports {value!r} only."
            )
    shared = {key: options[key] for key in _SHARED_KEYS if key in options}
    return DecoderConfig(
        **shared,
        rope_theta=_rope_theta(options),
        **_FAMILY_OPTIONS[str(family)](options),
    )


def hf_tensors(config: DecoderConfig, family: str) -> dict[str, HFTensor]:
    """Our name of every tensor, correction biases too, to theirs.

    Args:
        config: Of the decoder.
        family: The Hugging Face `model_type`.
    """
    tensors = {
        name: HFTensor(
            _hf_name(name, family),
            transpose=len(shape) == 2 and "embed_tokens" not in name,
        )
        for name, shape in parameter_shapes(config).items()
    }
    if config.moe_correction_bias:
        for index in range(config.num_hidden_layers):
            if config.is_moe_layer(index):
                mlp = f"model.layers.{index}.mlp"
                tensors[f"{mlp}.e_score_correction_bias"] = HFTensor(
                    f"{mlp}.moe_statics.e_score_correction_bias", False
                )
    return tensors


def state_from_hf(
    weights: Mapping[str, Array], config: DecoderConfig, family: str
) -> dict[str, Array]:
    """A state dict for `DecoderForCausalLM` out of a checkpoint's arrays.

    Args:
        weights: Hugging Face name to array.
        config: Of the decoder, see `config_from_hf`.
        family: The Hugging Face `model_type`.

    Raises:
        ValueError: Names missing from `weights`, or not known here.
    """
    tensors = hf_tensors(config, family)
    expected = {tensor.name for tensor in tensors.values()}
    missing, unknown = expected - weights.keys(), weights.keys() - expected
    if missing or unknown:
        raise ValueError(
            f"The checkpoint does not fit the config: missing "
            f"{sorted(missing)}, unknown {sorted(unknown)}."
        )
    state = {}
    for name, (theirs, transpose) in tensors.items():
        array = weights[theirs]
        if name.endswith("e_score_correction_bias"):
            array = array.reshape(-1)
        state[name] = np.ascontiguousarray(array.T if transpose else array)
    return state


def _hf_name(name: str, family: str) -> str:
    if family != "mixtral" or ".mlp." not in name:
        return name
    name = name.replace(".mlp.", ".block_sparse_moe.")
    for ours, theirs in _MIXTRAL_EXPERT.items():
        name = name.replace(f".{ours}.", f".{theirs}.")
    return name


def _rope_theta(options: Mapping[str, Any]) -> float:
    """The rotary base, of transformers 5 (`rope_parameters`) or before."""
    rope = options.get("rope_parameters") or options.get("rope_scaling") or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(
            f"rope_type={kind!r}: the decoder supports 'default' only."
        )
    theta = rope.get("rope_theta", options.get("rope_theta"))
    if theta is None:
        raise ValueError("The config holds no rope_theta: add it.")
    return float(theta)


def _mixtral(options: Mapping[str, Any]) -> dict[str, Any]:
    top_k = options["num_experts_per_tok"]
    return {
        "moe_num_experts": options["num_local_experts"],
        "moe_top_k": top_k,
        "router_aux_loss_coef": options["router_aux_loss_coef"] * top_k,
    }


def _ernie(options: Mapping[str, Any]) -> dict[str, Any]:
    num_layers = options["num_hidden_layers"]
    last = options["moe_layer_end_index"]
    end = num_layers if last == -1 else last + 1
    interval = options["moe_layer_interval"]
    top_k = options["moe_k"]
    return {
        "rope_layout": "interleaved",
        "moe_num_experts": options["moe_num_experts"],
        "moe_top_k": top_k,
        "moe_intermediate_size": options["moe_intermediate_size"],
        "moe_num_shared_experts": options["moe_num_shared_experts"],
        "moe_layers": [
            index
            for index in range(options["moe_layer_start_index"], end)
            if (index + 1) % interval == 0
        ],
        "moe_correction_bias": True,
        "router_aux_loss_coef": options["router_aux_loss_coef"] * top_k,
    }


_FAMILY_OPTIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": lambda options: {},
    "qwen3": lambda options: {"qk_norm": True},
    "mixtral": _mixtral,
    "ernie4_5_moe": _ernie,
}
