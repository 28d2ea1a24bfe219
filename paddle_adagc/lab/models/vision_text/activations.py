# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rank keeps from CLIP's forward pass for the backward pass.

Counted as in :mod:`paddle_adagc.lab.models.activations`. Of width d and with a
GELU network of width 4 d a block keeps 2 d norms' inputs, 2 d inputs of the
projections, 3 d queries, keys and values, d attention's output and 8 d around
the GELU, 16 d x w in all, and a log-sum-exp. Every device also has the logits
of its own rows against those of all data ranks, 4 bytes each.
"""

from paddle_adagc.lab.models.activations import FLOAT32_BYTES
from paddle_adagc.lab.models.vision_text.config import CLIPConfig


def pair_batch_bytes(
    model: CLIPConfig,
    batch_size: int,
    num_ranks: int,
    value_bytes: int,
    *,
    recompute: bool,
) -> int:
    """Return the bytes on a rank at the peak.

    Args:
        model: The architecture.
        batch_size: Pairs of the rank's forward pass.
        num_ranks: Ranks with pairs of their own.
        value_bytes: Bytes of a value.
        recompute: Every block keeps only its input.
    """
    kept_patches = max(1, int(model.num_patches * (1 - model.patch_dropout)))
    towers = (
        (
            kept_patches + 1,
            model.vision_width,
            model.vision_heads,
            model.vision_layers,
        ),
        (
            model.context_length,
            model.text_width,
            model.text_heads,
            model.text_layers,
        ),
    )
    total = 0
    for length, size, heads, layers in towers:
        values = (8 + 2 * model.mlp_ratio) * size
        block = values * value_bytes + heads * FLOAT32_BYTES
        inputs = layers * size * value_bytes
        kept = inputs + block if recompute else layers * block
        total += batch_size * length * kept
    logits = 2 * batch_size * (batch_size * num_ranks)
    return total + logits * FLOAT32_BYTES
