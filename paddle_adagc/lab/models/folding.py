# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A decoder's multipliers folded into its weights."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.initialization import (
    ALPHA,
    embedding_factor,
    plain_config,
)
from paddle_adagc.lab.models.sizes import parameter_shapes

Array = npt.NDArray[np.generic]

_EMBEDDING = "model.embed_tokens.weight"
_FINAL_NORM = "model.norm.weight"


def folded_tensors(
    state: Mapping[str, Array], config: DecoderConfig
) -> Iterator[tuple[str, Array]]:
    """Fold multipliers into the weights; the decoder computes the same.

    WeSaR's scales go into their matrices, the embedding's factor into the
    embedding. If the head is tied to the embedding, the final norm is divided
    by the factor, so that the logits stay. The result fits the decoder of
    `plain_config(config)`.

    Args:
        state: Our name to the whole tensor.
        config: The decoder's config.

    Yields:
        Parameters in the order of the model, then whatever else `state`
        holds, one by one. Products are taken in float32 at least and rounded
        to the tensor's dtype.
    """
    shapes = parameter_shapes(config)
    plain = parameter_shapes(plain_config(config))
    for name in [*plain, *(name for name in state if name not in shapes)]:
        yield name, _times(state[name], _factor(name, state, config))


def _factor(
    name: str, state: Mapping[str, Array], config: DecoderConfig
) -> float:
    if config.initialization == "wesar":
        alpha = state.get(name.removesuffix("weight") + ALPHA)
        return 1.0 if alpha is None else float(alpha.astype(np.float64)[0])
    if name == _EMBEDDING:
        return embedding_factor(config)
    if name == _FINAL_NORM and config.tie_word_embeddings:
        return 1 / embedding_factor(config)
    return 1.0


def _times(array: Array, factor: float) -> Array:
    if factor == 1.0:
        return array
    wide = "float64" if array.dtype == np.float64 else "float32"
    return np.multiply(array, factor, dtype=wide).astype(array.dtype)
