# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the decoder's weight matrices start, and what multiplies them.

Weight matrices W are drawn from a normal distribution around 0. With d the
hidden size and N the number of layers:

- "normal": the standard deviation is `initializer_range`.
- "scaled_embed" (Takase et al. 2023, arXiv 2312.16903): it is sqrt(2 / (5d)),
  and sqrt(1 / (2N)) times this for the outputs of attention and feed-forward
  networks. The embedding's output is multiplied by sqrt(d); a tied head
  multiplies by W without that.
- "wesar" (Nishida et al. 2024, arXiv 2410.05052): it is sqrt(4e-5), and alpha
  W takes the place of W, with a trained scalar alpha for every matrix.

WeSaR's alphas start so that alpha W has the standard deviation 1 (embedding),
sqrt(1 / (2Nd)) (attention outputs), sqrt(2 / (8Nd)) (outputs of feed-forward
networks, whatever their width) or 1 / sqrt(d) (all others: queries, keys,
values, gates, ups, the head; and routers, which that paper does not have).
"""

import math
from typing import Literal

from paddle_adagc.lab.models.config import DecoderConfig

Role = Literal["embedding", "input", "attention_output", "mlp_output"]
"""Task of a matrix; "input" is any that reads the residual stream."""

ALPHA = "alpha"
"""Name of a matrix's scale beside its "weight"."""

_ROLES: dict[str, Role] = {
    "embed_tokens": "embedding",
    "o_proj": "attention_output",
    "down_proj": "mlp_output",
}
_WESAR_DEVIATION = math.sqrt(4e-5)


def role_of(key: str) -> Role:
    """Role of the matrix that a parameter is, or is the scale of."""
    return _ROLES.get(key.split(".")[-2], "input")


def initial_deviation(config: DecoderConfig, role: Role) -> float:
    """Return the standard deviation of W's draw around 0."""
    if config.initialization == "normal":
        return config.initializer_range
    if config.initialization == "wesar":
        return _WESAR_DEVIATION
    deviation = math.sqrt(2 / (5 * config.hidden_size))
    if role in ("attention_output", "mlp_output"):
        deviation *= math.sqrt(1 / (2 * config.num_hidden_layers))
    return deviation


def initial_alpha(config: DecoderConfig, role: Role) -> float:
    """WeSaR's alpha at the start."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    target = {
        "embedding": 1.0,
        "input": math.sqrt(1 / hidden),
        "attention_output": math.sqrt(1 / (2 * layers * hidden)),
        "mlp_output": math.sqrt(2 / (8 * layers * hidden)),
    }[role]
    return target / _WESAR_DEVIATION


def embedding_factor(config: DecoderConfig) -> float:
    """Return the fixed factor of the embedding's output."""
    if config.initialization == "scaled_embed":
        return math.sqrt(config.hidden_size)
    return 1.0
