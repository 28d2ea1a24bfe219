# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Families of decoders. A new family is a file and an entry below."""

from paddle_adagc.lab.models.families.ernie import ERNIE
from paddle_adagc.lab.models.families.family import Family
from paddle_adagc.lab.models.families.llama import LLAMA
from paddle_adagc.lab.models.families.mixtral import MIXTRAL
from paddle_adagc.lab.models.families.qwen3 import QWEN3

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (ERNIE, MIXTRAL, QWEN3, LLAMA)
}
"""Family by transformers' `model_type`; the more special ones come first."""

__all__ = ["FAMILIES", "Family"]
