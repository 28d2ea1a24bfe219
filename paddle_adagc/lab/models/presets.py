# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's language models at full size, and configs built on them."""

import warnings
from collections.abc import Mapping
from typing import Any

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import FAMILIES

PRESETS: dict[str, Mapping[str, Any]] = {
    name: options
    for family in FAMILIES.values()
    for name, options in family.presets.items()
}
"""`DecoderConfig` options by the preset's name."""


def decoder_config(fields: Mapping[str, Any], **layout: Any) -> DecoderConfig:
    """Make the decoder's config from a run's `model` section.

    Args:
        fields: Options of `DecoderConfig`; with `preset`, a key of `PRESETS`,
            they replace that preset's.
        **layout: PaddleNLP's own keys, such as `tensor_parallel_degree`.

    Raises:
        ValueError: An unknown preset or option (the nearest is named), or a
            value out of range.
    """
    config: DecoderConfig = DecoderConfig.from_fields(fields, PRESETS, **layout)
    if config.initialization != "normal" and "initializer_range" in fields:
        warnings.warn(
            f"model.initializer_range={fields['initializer_range']} is "
            f"ignored: initialization={config.initialization!r} has its own",
            stacklevel=2,
        )
    return config


def preset(name: str, **overrides: Any) -> DecoderConfig:
    """Make the config of one of the paper's language models.

    Args:
        name: Key of `PRESETS`.
        **overrides: Options that replace the preset's.

    Raises:
        ValueError: See `decoder_config`.
    """
    return decoder_config({"preset": name, **overrides})
