# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rank keeps from the forward pass for the backward pass.

Counted like Korthikanti et al. (2022, arXiv 2205.05198, section 4): the inputs
that every operator saves, here for RMSNorm, grouped queries, fused attention
(which saves the log-sum-exp instead of the scores), SwiGLU and experts with a
balanced load. With h the hidden size, q and k the widths of all query heads and
of all key heads, a the heads, f and F the widths of a dense network and of an
expert, E experts of which K take a token, S shared ones, V the vocabulary, t
the tensor-parallel ranks (s = t under sequence parallelism, else 1), and w the
bytes of a value, per token and layer:

    both norms' inputs          2 h / s           x w
    inputs of the projections   2 h               x w
    queries, keys, values       (q + 2 k) / t     x w
    with QK-norm, its inputs    (q + k) / t       x w
    attention's output          q / t             x w
    log-sum-exp                 a / t             x 4
    dense network               3 f / t           x w
    or: routed rows, in, out    2 K h             x w
        experts, shared too     3 (K + S) F / t   x w
        router                  2 E               x 4

On the last stage also the final norm and the head: (h / s + h) w + V / t (w +
4). With recomputation a layer keeps its input, h / s x w, and one layer at a
time has all of the above. A pipeline (1F1B; Narayanan et al. 2021) keeps
min(P - p, micro-batches) micro-batches on stage p of P, counted from 0.

Under expert with tensor parallelism the routed rows are 2 K h / t; they are
counted as above. Left out: workspaces of kernels, fragments of the allocator,
buffers of NCCL and of the pipeline, float32 copies inside of unfused operators,
FP8 copies of weights and of what is saved (an FP8 product saves its bfloat16
inputs, as :mod:`paddle_adagc.lab.models.fp8.linear` does; PaddleFormers can
save less), the CUDA context.

CLIP is counted alike. Of width d and with a GELU network of width 4 d a block
keeps 2 d norms' inputs, 2 d inputs of the projections, 3 d queries, keys and
values, d attention's output and 8 d around the GELU, 16 d x w in all, and a
log-sum-exp. Every device also has the logits of its own rows against those of
all data ranks, 4 bytes each.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.vision_text.config import CLIPConfig

FLOAT32_BYTES = 4


def stage_bytes(
    model: DecoderConfig,
    layers: Sequence[int],
    value_bytes: int,
    *,
    num_held: int,
    has_head: bool,
    recompute: bool,
) -> int:
    """Return the bytes per token on a rank of a pipeline stage, at the peak.

    The stage keeps `num_held` micro-batches at the same time.
    """
    sizes = [layer_bytes(model, index, value_bytes) for index in layers]
    if recompute:
        inputs = model.hidden_size // _split(model) * value_bytes
        total = num_held * len(sizes) * inputs + max(sizes)
    else:
        total = num_held * sum(sizes)
    return total + (_head_bytes(model, value_bytes) if has_head else 0)


def layer_bytes(model: DecoderConfig, index: int, value_bytes: int) -> int:
    """Return the bytes per token of one decoder layer on one rank."""
    hidden, tp = model.hidden_size, model.tensor_parallel_degree
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    values = 2 * hidden // _split(model) + 2 * hidden
    values += (2 * queries + 2 * keys) // tp
    if model.qk_norm:
        values += (queries + keys) // tp
    extra = model.num_attention_heads // tp
    if model.is_moe_layer(index):
        called = model.moe_top_k + model.moe_num_shared_experts
        values += 2 * model.moe_top_k * hidden
        values += 3 * called * model.moe_intermediate_size // tp
        extra += 2 * model.moe_num_experts
    else:
        values += 3 * model.intermediate_size // tp
    return values * value_bytes + extra * FLOAT32_BYTES


def _head_bytes(model: DecoderConfig, value_bytes: int) -> int:
    hidden = model.hidden_size // _split(model) + model.hidden_size
    logits = model.vocab_size // model.tensor_parallel_degree
    return hidden * value_bytes + logits * (value_bytes + FLOAT32_BYTES)


def _split(model: DecoderConfig) -> int:
    """Ranks that share the sequence."""
    return model.tensor_parallel_degree if model.sequence_parallel else 1


def pair_batch_bytes(
    model: CLIPConfig,
    batch_size: int,
    num_ranks: int,
    value_bytes: int,
    *,
    recompute: bool,
) -> int:
    """Return CLIP's bytes on a rank at the peak, of its own batch."""
    kept_patches = max(1, int(model.num_patches * (1 - model.patch_dropout)))
    lengths = {"vision": kept_patches + 1, "text": model.context_length}
    total = 0
    for tower, length in lengths.items():
        size, heads, layers = (
            getattr(model, f"{tower}_{name}")
            for name in ("width", "heads", "layers")
        )
        values = (8 + 2 * model.mlp_ratio) * size
        block = values * value_bytes + heads * FLOAT32_BYTES
        inputs = layers * size * value_bytes
        kept = inputs + block if recompute else layers * block
        total += batch_size * length * kept
    logits = 2 * batch_size * (batch_size * num_ranks)
    return total + logits * FLOAT32_BYTES
