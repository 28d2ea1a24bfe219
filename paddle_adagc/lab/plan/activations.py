# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a rank keeps from the forward pass for the backward pass.

Counted as Korthikanti et al. (2022, arXiv 2205.05198, section 4) count: the
inputs that every operator saves, here for RMSNorm, grouped queries, fused
attention (which saves the log-sum-exp instead of the scores), SwiGLU and
experts with a balanced load. With h the hidden size, q and k the widths of all
query heads and of all key heads, a the heads, f and F the widths of a dense
network and of an expert, E experts of which K take a token, S shared ones, V
the vocabulary, t the tensor-parallel ranks (s = t under sequence parallelism,
else 1), and w the bytes of a value, per token and layer:

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

CLIP's blocks keep, of width d and with its GELU network of width 4 d: 2 d
norms' inputs, 2 d inputs of the projections, 3 d queries, keys and values, d
attention's output, 8 d around the GELU: 16 d x w, and a log-sum-exp; and each
device has the logits of its own rows against those of all data ranks, 4 bytes
each.

Left out: workspaces of kernels, fragments of the allocator, buffers of NCCL and
of the pipeline, float32 copies inside of unfused operators, FP8 copies of
weights and of what is saved (an FP8 product saves its bfloat16 inputs, as
:mod:`paddle_adagc.lab.models.fp8.linear` does; PaddleFormers can save less),
the CUDA context.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.train.config import ParallelConfig, RunConfig
from paddle_adagc.parallel.layout import TensorLayout

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_FLOAT32 = 4


def activation_bytes(
    model: DecoderConfig | CLIPConfig,
    config: RunConfig,
    stage: int,
    tensors: Sequence[TensorLayout],
    *,
    recompute: bool = False,
) -> int:
    """Bytes on a rank of a pipeline stage, at the worst moment.

    Args:
        model: Of the run.
        config: The run.
        stage: From 0.
        tensors: What the rank holds.
        recompute: Every layer keeps its input alone.
    """
    width = 4 if config.train.precision == "float32" else 2
    if isinstance(model, CLIPConfig):
        return _clip_bytes(model, config, width, recompute)
    parallel = config.parallel
    indices = {
        int(match[1]) for t in tensors if (match := _LAYER.search(t.key))
    }
    layers = [layer_bytes(model, parallel, width, i) for i in sorted(indices)]
    num_held = min(
        parallel.pp - stage, config.train.gradient_accumulation_steps
    )
    if recompute:
        kept = len(layers) * model.hidden_size // _split(parallel) * width
        per_token = num_held * kept + max(layers)
    else:
        per_token = num_held * sum(layers)
    if stage == parallel.pp - 1:
        per_token += _head_bytes(model, parallel, width)
    return config.train.batch_size * config.data.seq_length * per_token


def layer_bytes(
    model: DecoderConfig, parallel: ParallelConfig, width: int, index: int
) -> int:
    """Bytes per token of a decoder layer on one rank.

    Args:
        model: The decoder.
        parallel: The layout.
        width: Bytes of a value.
        index: Of the layer.
    """
    hidden, tp = model.hidden_size, parallel.tp
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    values = 2 * hidden // _split(parallel) + 2 * hidden
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
    return values * width + extra * _FLOAT32


def _head_bytes(
    model: DecoderConfig, parallel: ParallelConfig, width: int
) -> int:
    hidden = model.hidden_size // _split(parallel) + model.hidden_size
    logits = model.vocab_size // parallel.tp
    return hidden * width + logits * (width + _FLOAT32)


def _split(parallel: ParallelConfig) -> int:
    return parallel.tp if parallel.sequence_parallel else 1


def _clip_bytes(
    model: CLIPConfig, config: RunConfig, width: int, recompute: bool
) -> int:
    batch = config.train.batch_size
    kept_patches = max(1, int(model.num_patches * (1 - model.patch_dropout)))
    total = 0
    for length, size, heads, layers in (
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
    ):
        values = (8 + 2 * model.mlp_ratio) * size
        block = values * width + heads * _FLOAT32
        kept = layers * size * width + block if recompute else layers * block
        total += batch * length * kept
    all_rows = batch * config.parallel.num_data_ranks
    return total + 2 * batch * all_rows * _FLOAT32
