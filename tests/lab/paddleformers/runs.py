# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of PaddleFormers' ``ernie_pretrain`` that tests start on gloo ranks.

What it lacks on a CPU is filled in. Paddle's CPU build has no
``paddle.incubate.fp8`` (which the model's modules import whether FP8 is on or
not) and no kernels for the router's fused operators. Attention, SwiGLU,
RMSNorm, RoPE and linear layers have variants that are not fused, behind options
of the model.
"""

import json
import math
import sys
import types
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
from core.parallel.ranks import let_formers_start_fleet, run_on_ranks
from indexed import write_indexed_dataset

from paddle_adagc.integrations.arguments import without_threshold

RECIPES = (
    Path(__file__).resolve().parents[3] / "configs" / "ernie_10b_a1.4b_fp8"
)
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
    "logging_steps=100",
]
"""Overrides of the recipe."""

EP2 = [
    "sharding_parallel_size=2",
    "expert_model_parallel_size=2",
    "pipeline_model_parallel_size=1",
    "overlap_p2p_comm=false",
    "gradient_accumulation_steps=2",
]
"""Overrides: EP2 and sharding V2 on two ranks."""


def import_workflow():
    """PaddleFormers' ``ernie_pretrain.workflow``, made to run on this CPU."""
    fp8 = types.ModuleType("paddle.incubate.fp8")
    fp8.deep_gemm = types.ModuleType("deep_gemm")
    sys.modules.setdefault("paddle.incubate.fp8", fp8)
    from paddleformers.cli.train.ernie_pretrain import workflow
    from paddleformers.cli.train.ernie_pretrain.models.moe import (
        moe_layer,
        top2_gate,
    )
    from paddleformers.trainer import training_args

    let_formers_start_fleet()
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

    ``x`` is ``[num_tokens, hidden]``, ``gate_logits`` are probabilities; an
    expert drops what is above its capacity.
    """
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
    assert low == 0
    return paddle.bincount(x.reshape([-1]), minlength=high).astype(dtype)


class Toy:
    """Recipes on a small model and data, each run in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        config = json.loads((RECIPES / "config.json").read_text())
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(
            json.dumps({**config, **TOY_MODEL})
        )
        rng = np.random.default_rng(0)
        documents = rng.integers(TOY_MODEL["vocab_size"], size=[200, 50])
        write_indexed_dataset(folder / "tokens", documents, vocab_size=64)

    def run(self, name, num_ranks, *overrides, saves=True):
        """Run the recipe on gloo ranks; gives what `pretrain` does, by rank."""
        overrides = [
            *TOY_RUN,
            f"model_name_or_path={self.folder / 'model'}",
            f"input_dir=1.0 {self.folder / 'tokens'}",
            f"output_dir={self.folder / name}",
            *overrides,
        ]
        given = {"overrides": overrides, "saves": saves}
        return run_on_ranks(pretrain, num_ranks, timeout=300, **given)


def pretrain(overrides, saves):
    """Run the recipe on this rank.

    Gives ``losses`` per micro-batch; ``first`` and ``last`` weights by name;
    ``grad_clip``, the class of the optimizer's clip; its ``state``; ``norms``:
    per step and by name, the norm of the whole gradient, and the clip's.
    """
    workflow = import_workflow()
    from adagc_lab.paddleformers.launch import run_recipe

    trainers = []

    class Recording(workflow.PretrainingTrainer):
        def train(self, *args, **kwargs):
            trainers.append(self)
            self.losses, self.norms = [], []
            self.first = _weights(self.model)
            _observe(self._adagc.clip, self.norms)
            return super().train(*args, **kwargs)

        def save_model(self, *args, **kwargs):
            if saves:
                super().save_model(*args, **kwargs)

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.losses.append(float(loss))
            return loss

    tokenizer = types.SimpleNamespace(
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        save_pretrained=lambda folder: None,
    )
    workflow.ErnieBotTokenizer.from_pretrained = lambda name: tokenizer
    workflow.PretrainingTrainer = Recording
    run_recipe(RECIPES / "adagc.yaml", overrides)
    (trainer,) = trainers
    _check_places(trainer)
    return {
        "losses": trainer.losses,
        "first": trainer.first,
        "last": _weights(trainer.model),
        "grad_clip": type(trainer.optimizer._grad_clip).__name__,
        "state": trainer._adagc.clip.full_state_dict(),
        "norms": trainer.norms,
    }


def _observe(clip, norms):
    """Let a clip's steps add the norms of whole gradients, and its own."""
    clip_gradients = clip._dygraph_clip

    def observed(pairs):
        pairs = list(pairs)
        whole = _whole_norms(clip._progress.tensors, pairs)
        result = clip_gradients(pairs)
        mine = clip.metrics()["tensors"]
        norms.append({k: (norm, mine[k]["norm"]) for k, norm in whole.items()})
        return result

    clip._dygraph_clip = observed


def _whole_norms(table, pairs):
    """Norm of each tensor or unit, from the slices on all ranks, by key."""
    slices = {
        table.indexes([parameter])[0]: gradient.numpy()
        .astype("float64")
        .ravel()
        for parameter, gradient in pairs
    }
    everyone, norms = [], {}
    mine = {table.keys[slot]: part for slot, part in slices.items()}
    dist.all_gather_object(everyone, mine)
    for slot in slices:
        key = table.keys[slot]
        whole = np.concatenate([rank[key] for rank in everyone if key in rank])
        holder = table.cuts.parameters.get(slot) if table.cuts else None
        if holder is None:
            norms[key] = np.linalg.norm(whole)
            continue
        units = holder.units
        ends = np.cumsum([unit.shape[-1] for unit in units])
        size = sum(math.prod(unit.shape) for unit in units)  # padding follows
        columns = np.split(whole[:size].reshape([-1, ends[-1]]), ends[:-1], 1)
        for unit, values in zip(units, columns, strict=True):
            norms[unit.key] = np.linalg.norm(values)
    return norms


def _weights(model):
    """Copies of the weights by name."""
    from paddle_adagc.parallel.names import parameter_keys

    keys = parameter_keys(model)
    return {keys[p.name]: p.numpy().copy() for p in model.parameters()}


def _check_places(trainer):
    """Call three places where PaddleFormers takes every clip for GlobalNorm.

    The wrapper of the optimizer and the logger raise, or change the clip, if
    ours does not look as they want.
    """
    from paddleformers.cli.train.ernie_pretrain.src.callbacks import (
        moe_logging_callback,
    )

    optimizer = paddle.optimizer.AdamW(
        parameters=trainer.model.parameters(), grad_clip=trainer._adagc.clip
    )
    with without_threshold(trainer.args, trainer._adagc.clip):  # as in train()
        trainer._wrap_distributed_optimizer(optimizer)
        assert "_global_norm" not in vars(trainer._adagc.clip)
        trainer._new_gradclip()
    callback = moe_logging_callback.MoeLoggingCallback(trainer.optimizer)
    logs = {}
    callback.on_log(trainer.args, trainer.state, trainer.control, logs)
    assert not logs
