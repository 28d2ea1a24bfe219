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

from paddle import Tensor, nn

from paddle_adagc.lab.models.config import DecoderConfig

Role = Literal["embedding", "input", "attention_output", "mlp_output"]
"""Task of a matrix; "input" is any that reads the residual stream."""

_WESAR_DEVIATION = math.sqrt(4e-5)


def weight_initializer(
    config: DecoderConfig, role: Role
) -> nn.initializer.Initializer:
    """Return the initializer of a weight matrix."""
    deviation = config.initializer_range
    if config.initialization == "wesar":
        deviation = _WESAR_DEVIATION
    elif config.initialization == "scaled_embed":
        deviation = math.sqrt(2 / (5 * config.hidden_size))
        if role in ("attention_output", "mlp_output"):
            deviation *= math.sqrt(1 / (2 * config.num_hidden_layers))
    return nn.initializer.Normal(0.0, deviation)


def create_alpha(layer: nn.Layer, config: DecoderConfig, role: Role) -> Tensor:
    """WeSaR's scale of a matrix, [1], for the layer's attribute `alpha`."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    target = {
        "embedding": 1.0,
        "input": math.sqrt(1 / hidden),
        "attention_output": math.sqrt(1 / (2 * layers * hidden)),
        "mlp_output": math.sqrt(2 / (8 * layers * hidden)),
    }[role]
    start = nn.initializer.Constant(target / _WESAR_DEVIATION)
    return layer.create_parameter([1], default_initializer=start)
