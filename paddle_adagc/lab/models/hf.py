# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers' tensor names and layouts for our decoder."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import Family
from paddle_adagc.lab.models.folding import folded_tensors
from paddle_adagc.lab.models.hf_config import family_of
from paddle_adagc.lab.models.initialization import plain_config
from paddle_adagc.lab.models.sizes import parameter_shapes

Array = npt.NDArray[np.generic]

_ROTARY = ".rotary_emb.inv_freq"
_HEAD = "lm_head.weight"


class HFTensor(NamedTuple):
    """Place of a tensor in a Hugging Face checkpoint."""

    name: str
    transpose: bool
    """The checkpoint holds the transpose of our matrix."""


def hf_tensors(config: DecoderConfig, family: Family) -> dict[str, HFTensor]:
    """Map our names, correction biases included, to the checkpoint's.

    Our names are those of a decoder without multipliers (see `folding`). Our
    matrices are [in, out], the checkpoint's [out, in].

    Args:
        config: The decoder's config.
        family: Family of the checkpoint.
    """
    tensors = {
        name: HFTensor(
            family.tensor_name(name),
            transpose=len(shape) == 2 and "embed_tokens" not in name,
        )
        for name, shape in parameter_shapes(plain_config(config)).items()
    }
    for name in correction_biases(config):
        mlp, bias = name.rsplit(".", 1)
        tensors[name] = HFTensor(f"{mlp}.moe_statics.{bias}", False)
    return tensors


def correction_biases(config: DecoderConfig) -> list[str]:
    """Return our names of the correction biases, each [num_experts]."""
    if not config.moe_correction_bias:
        return []
    return [
        f"model.layers.{index}.mlp.e_score_correction_bias"
        for index in range(config.num_hidden_layers)
        if config.is_moe_layer(index)
    ]


def state_from_hf(
    weights: Mapping[str, Array], config: DecoderConfig, family: Family
) -> dict[str, Array]:
    """Convert a checkpoint's arrays to a state dict of `DecoderForCausalLM`.

    Like transformers, it leaves out a stored copy of a tied head and the rotary
    frequencies of old Llama checkpoints.

    Args:
        weights: Array by Hugging Face name.
        config: The decoder's config, see `hf_config.config_from_hf`.
        family: Family of the checkpoint.

    Raises:
        ValueError: `weights` lacks names or holds unknown ones.
    """
    tensors = hf_tensors(config, family)
    if config.tie_word_embeddings and _holds_tied_head(weights):
        weights = {k: v for k, v in weights.items() if k != _HEAD}
    weights = {k: v for k, v in weights.items() if not k.endswith(_ROTARY)}
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


def state_to_hf(
    state: Mapping[str, Array], config: DecoderConfig
) -> Iterator[tuple[str, Array]]:
    """Convert a decoder's tensors to Hugging Face's names and layout.

    Transformers knows no multipliers of the initialisation: they are folded
    into the weights.

    Args:
        state: Whole tensor by our name, correction biases included.
        config: The decoder's config.

    Yields:
        Hugging Face name and contiguous array, one tensor at a time.

    Raises:
        ValueError: `state` lacks names or holds unknown ones.
    """
    tensors = hf_tensors(config, family_of(config))
    own = {*parameter_shapes(config), *correction_biases(config)}
    missing, unknown = own - state.keys(), state.keys() - own
    if missing or unknown:
        raise ValueError(
            f"The weights do not fit the config: missing {sorted(missing)}, "
            f"unknown {sorted(unknown)}."
        )
    for name, array in folded_tensors(state, config):
        theirs, transpose = tensors[name]
        if name.endswith("e_score_correction_bias"):
            array = array.reshape(1, -1)
        yield theirs, np.ascontiguousarray(array.T if transpose else array)


def _holds_tied_head(weights: Mapping[str, Array]) -> bool:
    embedding, head = (
        weights.get("model.embed_tokens.weight"),
        weights.get(_HEAD),
    )
    if embedding is None or head is None:
        return False
    return np.array_equal(embedding, head)
