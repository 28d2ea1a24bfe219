# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rank keeps from the forward pass for the backward pass.

Counted like Korthikanti et al. (2022, arXiv 2205.05198, section 4): the inputs
that every operator saves. Per token and layer, with h the hidden size, q and k
the widths of all query and all key heads, a the heads, f and F the widths of a
dense network and of an expert, E experts of which K take a token, S shared
ones, t the tensor-parallel ranks (s = t under sequence parallelism, else 1),
and w the bytes of a value:

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
4), V the vocabulary. With recomputation a layer keeps its input, h / s x w, and
one layer at a time has all of the above. A pipeline (1F1B; Narayanan et al.
2021) keeps min(P - p, micro-batches) micro-batches on stage p of P, from 0.

Left out: workspaces of kernels, fragments of the allocator, buffers of NCCL and
of the pipeline, float32 copies inside of unfused operators, FP8 copies, the
CUDA context; under expert with tensor parallelism routed rows are 2 K h / t.

A block of CLIP of width d keeps 16 d x w (2 d norms' inputs, 2 d inputs of the
projections, 3 d queries, keys and values, d attention's output, 8 d around the
GELU) and a log-sum-exp. Every device also has the logits of its own rows
against those of all data ranks, 4 bytes each.
"""

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.vision_text import CLIPConfig

FLOAT32_BYTES = 4


def stage_bytes(
    model: DecoderConfig,
    num_layers: int,
    value_bytes: int,
    *,
    num_held: int,
    has_head: bool,
    recompute: bool,
) -> int:
    """Return the bytes per token on a rank of a pipeline stage, at the peak.

    The stage keeps `num_held` micro-batches at the same time.
    """
    hidden = model.hidden_size // _split(model)
    layer = layer_bytes(model, value_bytes)
    total = num_held * num_layers * layer
    if recompute:
        total = num_held * num_layers * hidden * value_bytes + layer
    if has_head:
        logits = model.vocab_size // model.tensor_parallel_degree
        total += (hidden + model.hidden_size) * value_bytes
        total += logits * (value_bytes + FLOAT32_BYTES)
    return total


def layer_bytes(model: DecoderConfig, value_bytes: int) -> int:
    """Return the bytes per token of one decoder layer on one rank."""
    hidden, tp = model.hidden_size, model.tensor_parallel_degree
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    values = 2 * hidden // _split(model) + 2 * hidden
    values += (2 * queries + 2 * keys) // tp
    if model.qk_norm:
        values += (queries + keys) // tp
    extra = model.num_attention_heads // tp
    if model.moe_num_experts:
        called = model.moe_top_k + model.moe_num_shared_experts
        values += 2 * model.moe_top_k * hidden
        values += 3 * called * model.moe_intermediate_size // tp
        extra += 2 * model.moe_num_experts
    else:
        values += 3 * model.intermediate_size // tp
    return values * value_bytes + extra * FLOAT32_BYTES


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
        block = 16 * size * value_bytes + heads * FLOAT32_BYTES
        inputs = layers * size * value_bytes
        kept = inputs + block if recompute else layers * block
        total += batch_size * length * kept
    logits = 2 * batch_size * (batch_size * num_ranks)
    return total + logits * FLOAT32_BYTES
