# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What sets a family of decoders apart, here and in transformers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig

Options = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of decoders that transformers has a class for."""

    model_type: str
    """`model_type` in transformers' config.json."""

    class_name: str
    """Class of transformers."""

    presets: Mapping[str, Options]
    """`DecoderConfig` options of the paper's models at full size, by name."""

    options: Options
    """`DecoderConfig` options that all models of the family share and that
    transformers does not store."""

    defaults: Options
    """Keys of config.json that may be missing, with what transformers then
    assumes."""

    includes: Callable[[DecoderConfig], bool]
    """Whether the family is the nearest one to a decoder. The first family of
    `FAMILIES` that says so is taken."""

    read_experts: Callable[[Options], dict[str, Any]] = lambda config: {}
    """`DecoderConfig` options of the experts from a config.json."""

    write_experts: Callable[[DecoderConfig], dict[str, Any]] = lambda config: {}
    """Keys of config.json for the experts, the inverse of `read_experts`."""

    tensor_name: Callable[[str], str] = lambda name: name
    """Name of a tensor in transformers from our name."""


def moe_layers(config: DecoderConfig) -> list[int]:
    """Return the indices of the layers with experts, from 0."""
    layers = range(config.num_hidden_layers)
    return [index for index in layers if config.is_moe_layer(index)]


def read_balance_factor(config: Options, top_k: int) -> dict[str, float]:
    """Convert transformers' factor of the load-balancing loss.

    Transformers' loss is `top_k` times ours (see `moe.load_balancing_loss`).
    The result has 15 digits, so that `write_balance_factor` gives the same
    number back.

    Args:
        config: Parsed config.json.
        top_k: Experts that a token goes to.
    """
    factor = config["router_aux_loss_coef"] * top_k
    return {"router_aux_loss_coef": float(f"{factor:.15g}")}


def write_balance_factor(config: DecoderConfig) -> dict[str, float]:
    """Return transformers' factor of the load-balancing loss."""
    factor = config.router_aux_loss_coef / config.moe_top_k
    return {"router_aux_loss_coef": factor}
