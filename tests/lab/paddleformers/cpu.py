# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What PaddleFormers' ``ernie_pretrain`` lacks on a CPU, filled in for tests.

Paddle's CPU build has no ``paddle.incubate.fp8`` (which the model's modules
import whether FP8 is on or not) and no kernels for the router's fused
operators. Attention, SwiGLU, RMSNorm, RoPE and linear layers have variants that
are not fused, behind options of the model.
"""

import sys
import types

TOY_MODEL = {
    "num_hidden_layers": 3,
    "moe_layer_end_index": 2,
    "hidden_size": 32,
    "intermediate_size": 16,
    "moe_intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_capacity": [2, 2, 2],
    "vocab_size": 64,
    "max_position_embeddings": 16,
    "fuse_linear": False,
    "fuse_swiglu": False,
    "fuse_rms_norm": False,
    "fuse_gate_detach_matmul": False,
    "apply_rope_fusion": False,
    "use_flash_attn": False,
}
"""Changes to the recipe's ``config.json``: a small model, nothing fused."""

TOY_RUN = [
    "ernie_model_config.use_fp8_mlp=false",
    "ernie_model_config.use_fp8_fuse_node=false",
    "ernie_model_config.use_combine_before_a2a=false",
    "ernie_model_config.use_quant_before_a2a=false",
    "compute_type=float32",
    "device=cpu",
    "max_seq_len=16",
    "per_device_train_batch_size=2",
    "warmup_steps=1",
    "dataloader_num_workers=0",
    "sharding_comm_buffer_size_MB=1",
]
"""Overrides of the recipe."""


def import_workflow():
    """PaddleFormers' ``ernie_pretrain.workflow``, made to run on this CPU."""
    fp8 = types.ModuleType("paddle.incubate.fp8")
    fp8.deep_gemm = types.ModuleType("deep_gemm")
    sys.modules.setdefault("paddle.incubate.fp8", fp8)
    import paddle
    from paddle.distributed import fleet
    from paddle.distributed.parallel import parallel_helper
    from paddleformers.cli.train.ernie_pretrain import workflow
    from paddleformers.cli.train.ernie_pretrain.models.moe import (
        moe_layer,
        top2_gate,
    )
    from paddleformers.trainer import training_args

    # The ranks of these tests have joined before PaddleFormers looks, which
    # then leaves fleet alone.
    parallel_helper._is_parallel_ctx_initialized = lambda: hasattr(
        fleet.fleet, "_hcg"
    )
    paddle.device.synchronize = lambda: None  # it knows no CPU
    moe_layer.moe_gate_dispatch = dispatch
    moe_layer.GateCombine = types.SimpleNamespace(apply=combine)
    top2_gate.int_bincount = count
    top2_gate.CalAuxLossFunctor = types.SimpleNamespace(
        apply=lambda *args, clip_min: top2_gate.cal_aux_loss_func(*args)
    )
    # PaddleFormers refuses sharding V2 without float32 main gradients, and
    # those without AMP, for which a CPU has no bfloat16 product.
    training_args._raise_config_conflict = lambda **kwargs: None
    return workflow


def dispatch(x, gate_logits, corr_bias, k, capacity, use_pad):
    """``paddle.incubate.nn.functional.moe_gate_dispatch`` of plain operators.

    Args:
        x: ``[num_tokens, hidden]``.
        gate_logits: Probabilities ``[num_tokens, num_experts]``.
        corr_bias: ``[num_experts]``, added for the choice alone.
        k: Experts a token.
        capacity: Tokens an expert; the rest is dropped.
        use_pad: Every expert has ``capacity`` rows.
    """
    import paddle

    assert use_pad
    num_experts = gate_logits.shape[1]
    chosen = paddle.topk(gate_logits + corr_bias, k, axis=1)[1]
    weights = paddle.take_along_axis(gate_logits, chosen, axis=1)
    expert = chosen.transpose([1, 0]).reshape([-1])  # [k * num_tokens]
    mine = paddle.nn.functional.one_hot(expert, num_experts)
    place = ((paddle.cumsum(mine, axis=0) - 1) * mine).sum(axis=1)
    kept = (place < capacity).astype(x.dtype)
    row = (expert * capacity + place.astype("int64")) * kept.astype("int64")
    y = paddle.scatter_nd_add(
        paddle.zeros([num_experts * capacity, x.shape[1]], x.dtype),
        row.unsqueeze(1),
        x.tile([k, 1]) * kept.unsqueeze(1),
    )
    offset = paddle.cumsum(mine.sum(axis=0)).astype("int64")
    kept = kept.reshape([k, -1]).transpose([1, 0])
    row = row.reshape([k, -1]).astype("int32")
    return y, weights * kept, row, offset, chosen.astype("int32")


def combine(x, combine_weights, scatter_index):
    """``paddle.incubate.nn.functional.moe_combine`` of plain operators."""
    rows = x[scatter_index.reshape([-1])].reshape([*scatter_index.shape, -1])
    return (rows * combine_weights.unsqueeze(-1)).sum(axis=1)


def count(x, low, high, dtype):
    """``int_bincount`` of plain operators; ``low`` is 0."""
    import paddle

    assert low == 0
    return paddle.bincount(x.reshape([-1]), minlength=high).astype(dtype)
