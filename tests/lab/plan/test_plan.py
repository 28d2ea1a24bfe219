# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans of recipes at full size, of memory, and on the command line."""

import dataclasses
from pathlib import Path
from unittest import mock

import pytest
from adagc_lab.models.activations import layer_bytes
from adagc_lab.models.config import DecoderConfig
from adagc_lab.plan import costs, plan
from adagc_lab.plan.dry_run import ADAGC, GLOBAL_GC, RankPlan
from adagc_lab.train.config import (
    OPTIMIZERS,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from adagc_lab.train.tasks import make_task
from pages import load_tool

from paddle_adagc.parallel.layout import TensorLayout

main = load_tool("plan").main

CONFIGS = Path(__file__).parents[3] / "configs"
PROXY = CONFIGS / "proxy/ernie_moe.yaml"
ERNIE = CONFIGS / "ernie_10b_a1.4b_fp8/adagc.yaml"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_plan_knows_every_optimizer(name, capsys):
    arguments = f"optimizer.name={name}", "record.moments=false"
    assert main([str(PROXY), *arguments]) == 0
    assert "optimizer" in capsys.readouterr().out


def test_ernie_recipe():
    with mock.patch.object(plan, "SIZES", (8, 32, 512)):
        ernie = plan.plan_run(ERNIE)
    assert ernie.config.parallel.num_processes == 256
    assert ernie.config.global_batch == 4096
    # 25 layers x (qkv, o, 2 norms, router, 2 each of 49 experts) + 3
    assert ernie.of_formers == (25 * 103 + 3, 3853, 3828)
    assert len(ernie.ranks) == 4
    # A rank holds 6 of 48 experts; the other 42 are on other ranks.
    held = ernie.size.tensors - 25 * 3 * 42
    assert sum(len(rank.tensors) for rank in ernie.ranks) == held
    experts = 25 * 3 * 2560 * 1024
    held = ernie.size.parameters - 42 * experts
    assert sum(memory.weights for memory in ernie.memory) == 2 * held

    assert [*ernie.growth] == [32, 512]
    for num_gpus, steps in ernie.growth.items():
        first = steps[0].collectives[0]
        assert steps[0].step == GLOBAL_GC
        assert (first.group, len(first.ranks)) == ("sharding", num_gpus // 4)
    small, large = (steps[-1] for steps in ernie.growth.values())
    assert [c.group for c in small.collectives] == ["sharding"]
    assert [c.group for c in large.collectives] == ["sharding", "moe_sharding"]
    assert large.step == ADAGC
    assert large.us > small.us

    text = plan.render(ernie)
    assert "10,559,741,440 (10.56B)" in text
    assert "3,853, 3,828 without routers" in text
    assert "2,578 parameters, in which the clip follows 3,853 tensors" in text
    assert "1 all_reduce of 280 B over sharding (64 ranks)" in text
    assert "The layout does not fit on 8, 16, 64," in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("parallel", "num_gpus", "change"),
    [
        ({"dp": 2, "tp": 2}, 16, {"dp": 8}),
        ({"sharding": 64, "pp": 4, "ep": 8}, 32, {"sharding": 8}),
        ({"dp": 2, "sharding": 4}, 16, {"sharding": 8}),
        ({"tp": 2, "sharding": 2, "ep": 4}, 8, {"sharding": 4}),
    ],
)
def test_resized(parallel, num_gpus, change):
    layout = plan.resized(ParallelConfig(**parallel), num_gpus)
    assert layout == ParallelConfig(**parallel | change)
    assert layout.num_processes == num_gpus


@pytest.mark.parametrize(
    ("num_gpus", "message"),
    [(100, "100 GPUs .* pp 4 x ep 8 = 32: use 96 or 128"), (8, "use 32$")],
)
def test_refuses_a_number_of_gpus_with_the_nearest_ones(num_gpus, message):
    with pytest.raises(ValueError, match=message):
        plan.resized(ParallelConfig(sharding=64, pp=4, ep=8), num_gpus)


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
    ("optimizer", "precision", "weights", "states"),
    [
        ("adamw", "float32", 4, 290 * 8),
        ("adamw", "bfloat16", 2, 290 * (8 + 4)),
        ("adamw", "float8", 2, 290 * (8 + 4)),
        ("lion", "float32", 4, 290 * 4),
        ("muon", "float32", 4, 100 * 4 + 190 * 8),
    ],
)
def test_memory(optimizer, precision, weights, states):
    config = run(optimizer, precision)
    task = mock.Mock(train=config.train, parallel=config.parallel)
    task.activation_bytes.return_value = 7
    rank = RankPlan(0, tuple(TENSORS), frozenset("a"), {})
    memory = costs.rank_memory(rank, 0, task, optimizer, recompute=False)
    found = dataclasses.astuple(memory)
    assert found == (290 * weights, 290 * 4, states, 7)
    assert memory.total == sum(found)


def test_sharding_splits_or_deals_out():
    dense = TENSORS[:3]
    split = costs.optimizer_share(dense, ParallelConfig(sharding=4))
    assert [share for _, share in split] == [25, 15, 13]
    owned = ParallelConfig(sharding=2, sharding_split_param=False)
    # The largest first, each to the rank with the least: {a}, {b, c}.
    assert [t.key for t, _ in costs.optimizer_share(dense, owned)] == ["b", "c"]
    experts = costs.optimizer_share(TENSORS, ParallelConfig(sharding=4, ep=2))
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
    assert layer_bytes(DecoderConfig(**DENSE), 2) == 232 * 2 + 4 * 4
    # tensor parallelism halves what comes after the projections' inputs
    half = 64 + (64 + 32 + 72) // 2
    model = DecoderConfig(**DENSE, tensor_parallel_degree=2)
    assert layer_bytes(model, 2) == half * 2 + 2 * 4
    # sequence parallelism halves the norms' inputs as well
    model.sequence_parallel = True
    assert layer_bytes(model, 2) == (half - 16) * 2 + 2 * 4


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
    assert layer_bytes(model, 4) == values * 4 + (4 + 12) * 4


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


@pytest.mark.slow
def test_command(capsys, monkeypatch):
    monkeypatch.setattr(plan, "SIZES", (8, 16))
    assert main([str(PROXY), "--gpus", "16", "train.batch_size=4"]) == 0
    text = capsys.readouterr().out
    assert "Note: 64 sequences a step, the recipe has 32" in text
    assert "16 (dp 16, sharding 1, tp 1, pp 1, ep 1)" in text
    assert "in PaddleFormers" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(PROXY), "parallel.tp=2", "--gpus", "3"], "3 GPUs are not a"),
        ([str(PROXY), "train.batch=1"], "unknown key 'train.batch'"),
        (
            [str(PROXY), "--interconnect", "ib=1"],
            "interconnect: unknown key 'ib'",
        ),
        ([str(PROXY), "--gpus", "0"], "GPUs must be at least 1, got 0"),
        ([str(PROXY), "--gpus", "-4"], "GPUs must be at least 1, got -4"),
    ],
)
def test_command_refuses(arguments, message, capsys):
    if "parallel.tp=2" in arguments:
        arguments.insert(2, "record={tensors: false, moments: false}")
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
