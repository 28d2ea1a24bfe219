# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sizes of the net that is spread over ranks, and the models made of it."""

import dataclasses

VOCABULARY, HIDDEN, INNER, OF_EXPERTS = 32, 16, 24, 8
HEADS, KEY_HEADS, HEAD = 4, 2, 8
SPREAD = 0.2  # of the initial weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What differs between models."""

    num_hidden_layers: int = 3
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    moe_num_experts: int = 0
    moe_top_k: int = 2


DENSE = {"qk_norm": True, "tie_word_embeddings": True}
MOE = {"moe_num_experts": 4}
# So many experts that some get no token on a rank, or on any.
SPARSE_MOE = {"moe_num_experts": 16, "moe_top_k": 1}
# Stage 3 has no weights for a layer that uses another's.
UNTIED = {"qk_norm": True}
