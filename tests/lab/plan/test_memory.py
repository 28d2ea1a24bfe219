# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a rank, against sums by hand."""

import dataclasses

import pytest

from paddle_adagc.lab.models.activations import layer_bytes
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.plan.memory import (
    clipped_bytes,
    optimizer_share,
    rank_memory,
)
from paddle_adagc.lab.train.config import ParallelConfig, RunConfig, TrainConfig
from paddle_adagc.lab.train.optimizer_config import OPTIMIZERS
from paddle_adagc.lab.train.tasks import make_task
from paddle_adagc.parallel.layout import TensorLayout

TENSORS = [
    TensorLayout(key="a", shape=(10, 10)),
    TensorLayout(key="b", shape=(6, 10)),
    TensorLayout(key="c", shape=(50,)),
    TensorLayout(key="experts.0", shape=(8, 10), is_expert=True),
]  # 290 values


def run(optimizer="adamw", precision="float32", **parallel):
    return RunConfig(
        model={},
        clip={"name": "adagc"},
        train=TrainConfig(
            output_dir="unused",
            max_steps=1,
            batch_size=2,
            gradient_accumulation_steps=3,
            precision=precision,
        ),
        optimizer=OPTIMIZERS[optimizer](),
        parallel=ParallelConfig(**parallel),
    )


@pytest.mark.parametrize(
    ("precision", "weights", "master"),
    [("float32", 4, 0), ("bfloat16", 2, 4), ("float8", 2, 4)],
)
def test_bytes_of_a_value(precision, weights, master):
    memory = rank_memory(TENSORS, {"a"}, run(precision=precision), 7)
    assert dataclasses.astuple(memory) == (
        290 * weights,
        290 * 4,
        290 * (8 + master),
        7,
    )
    assert memory.total == 290 * (weights + 12 + master) + 7


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("adamw", 290 * 8), ("lion", 290 * 4), ("muon", 100 * 4 + 190 * 8)],
)
def test_optimizer_states(optimizer, expected):
    memory = rank_memory(TENSORS, {"a"}, run(optimizer), 0)
    assert memory.optimizer == expected


def test_sharding_splits_or_deals_out():
    dense = TENSORS[:3]
    split = optimizer_share(dense, ParallelConfig(sharding=4))
    assert [share for _, share in split] == [25, 15, 13]
    owned = ParallelConfig(sharding=2, sharding_split_param=False)
    # The largest first, each to the rank with the least: {a}, {b, c}.
    assert [t.key for t, _ in optimizer_share(dense, owned)] == ["b", "c"]
    assert clipped_bytes(dense, owned) == 4 * 110
    experts = optimizer_share(TENSORS, ParallelConfig(sharding=4, ep=2))
    assert [share for _, share in experts] == [25, 15, 13, 40]


DENSE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}  # q = 32, k = 16


def test_activations_of_a_layer():
    # norms 32, projections 32, q k v 64, attention 32, network 72
    assert layer_bytes(DecoderConfig(**DENSE), 0, 2) == 232 * 2 + 4 * 4
    # tensor parallelism halves what comes after the projections' inputs
    half = 64 + (64 + 32 + 72) // 2
    model = DecoderConfig(**DENSE, tensor_parallel_degree=2)
    assert layer_bytes(model, 0, 2) == half * 2 + 2 * 4
    # sequence parallelism halves the norms' inputs as well
    model.sequence_parallel = True
    assert layer_bytes(model, 0, 2) == (half - 16) * 2 + 2 * 4


def test_activations_of_experts():
    model = DecoderConfig(
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        moe_num_experts=6,
        moe_top_k=3,
        moe_num_shared_experts=1,
        moe_intermediate_size=5,
    )
    values = 160 + 2 * 3 * 16 + 3 * (3 + 1) * 5
    assert layer_bytes(model, 0, 4) == values * 4 + (4 + 12) * 4


@pytest.mark.parametrize(
    ("stage", "recompute", "layers_held", "head"),
    [
        # 1F1B: three micro-batches on the first stage of four, and so on.
        (0, False, 3, False),
        (2, False, 2, False),
        (3, False, 1, True),
        (0, True, None, False),
    ],
)
def test_activations_of_a_stage(stage, recompute, layers_held, head):
    config = dataclasses.replace(run(pp=4), model=DENSE)
    keys = [f"model.layers.{stage}.mlp.up_proj.weight"]
    layer = 232 * 4 + 16
    per_token = 3 * 16 * 4 + layer if recompute else layers_held * layer
    if head:
        per_token += 32 * 4 + 32 * 8
    found = make_task(config).activation_bytes(stage, keys, recompute=recompute)
    assert found == 2 * config.data.seq_length * per_token
