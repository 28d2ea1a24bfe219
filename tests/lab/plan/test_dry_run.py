# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plan's dry run against real ranks, and against what they were seen do."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import paddle
import pytest
from adagc_lab.benchmark.collectives import CLIPS, LAYOUTS, to_markdown
from adagc_lab.benchmark.counts import count
from adagc_lab.plan import dry_run
from adagc_lab.plan.plan import with_parallel
from adagc_lab.train.config import ParallelConfig
from adagc_lab.train.parse import load_config
from adagc_lab.train.tasks import make_task
from core.parallel.ranks import run_on_ranks
from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu.random import get_rng_state_tracker

from paddle_adagc.parallel.layout import read_layout

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/parallelism.md"
CONFIG = ROOT / "configs/proxy/ernie_moe.yaml"
SMALL = [
    "model.hidden_size=16",
    "model.moe_intermediate_size=16",
    "model.num_hidden_layers=3",
    "train.batch_size=2",
    "train.gradient_accumulation_steps=2",
    "train.max_steps=2",
    "train.visualdl=false",
    "data.validation_size=16",
]


def in_layout(name, overrides=()):
    config = load_config(CONFIG, overrides)
    return with_parallel(config, ParallelConfig(**LAYOUTS[name]))


def plan_ranks(config):
    return dry_run.plan_ranks(make_task(config), config.clip)


@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_the_table_counted_on_real_processes(name):
    rank = plan_ranks(in_layout(name))[0]
    global_gc, warm_up, adaptive = map(count, rank.steps.values())
    table = to_markdown(
        [
            {"layout": name, "clip": "GlobalGC", "adaptive": global_gc},
            {
                "layout": name,
                "clip": "AdaGC",
                "warm_up": warm_up,
                "adaptive": adaptive,
            },
        ]
    )
    counted = [
        line
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith(tuple(f"| {name} | {clip} |" for clip in CLIPS))
    ]
    assert table.splitlines()[2:] == counted


def train_a_rank(name, overrides):
    """What both clips communicate in two steps, and the rank's tensors."""
    from adagc_lab.benchmark.collectives import record_communication

    entries = {}
    for clip, settings in {
        **CLIPS,
        "AdaGC": ["clip={name: adagc, t_start: 1}"],
    }.items():
        config = in_layout(name, [*overrides, *settings])
        entries[clip] = [*map(tuple, record_communication(config))]
    layout = read_layout(make_task(config).build_model())
    return entries, list(layout.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("TP2 x PP2", marks=pytest.mark.long), "EP2 x V2 x4"]
)
def test_equals_the_ledger_on_real_ranks(name, tmp_path):
    overrides = [*SMALL, f"train.output_dir={tmp_path}/run"]
    config = in_layout(name, overrides)
    real = run_on_ranks(
        train_a_rank,
        config.parallel.num_processes,
        name=name,
        overrides=overrides,
    )
    plans = plan_ranks(config)
    assert len(plans) == config.parallel.pp
    planned = []
    for plan in plans:
        global_gc, *adagc = plan.steps.values()
        entries, layout = real[plan.rank]
        assert entries == {"GlobalGC": [global_gc] * 2, "AdaGC": adagc}
        assert layout == list(plan.tensors)
        planned.append(rows(entries))
    assert all(rows(entries) in planned for entries, _ in real)


def rows(entries):
    """As on any rank: without the ranks of the groups."""
    return {clip: [*map(count, calls)] for clip, calls in entries.items()}


def test_groups_of_a_rank_are_fleets():
    with dry_run.as_rank(make_task(in_layout("EP2 x V2 x4")), 3):
        groups = fleet.get_hybrid_communicate_group()
        assert groups.get_sharding_parallel_group().ranks == [0, 1, 2, 3]
        assert groups.get_expert_parallel_group().ranks == [2, 3]
        assert groups.get_moe_sharding_parallel_group().ranks == [1, 3]
        assert groups.get_moe_sharding_parallel_rank() == 1


def test_a_full_size_model_takes_no_memory():
    config = dataclasses.replace(
        in_layout("TP2"), model={"preset": "llama2-7b"}
    )
    task = make_task(config)
    with dry_run.as_rank(task, 0):
        model = dry_run.build_without_memory(task)
    assert not any(p._is_initialized() for p in model.parameters())
    layout = read_layout(model).values()
    assert sum(math.prod(t.shape) for t in layout) == 3_369_340_928


def test_leaves_no_trace(monkeypatch):
    tracker = get_rng_state_tracker()
    for name, nothing in (("states_", {}), ("seeds_", set())):
        monkeypatch.setattr(tracker, name, nothing)
    tracker.add("global_seed", 11)
    kept = dict(tracker.states_)
    paddle.seed(7)
    expected = paddle.rand([4]).numpy()
    paddle.seed(7)
    functions = {
        name: getattr(paddle.distributed, name)
        for name in ("all_reduce", "get_rank", "new_group", "is_initialized")
    }
    attributes = dict(fleet.fleet.__dict__)
    plan_ranks(in_layout("TP2 x PP2"))
    wrong = in_layout("TP2", ["model.num_key_value_heads=1"])
    with pytest.raises(ValueError, match="num_key_value_heads=1 is not a mult"):
        plan_ranks(wrong)
    for name, function in functions.items():
        assert getattr(paddle.distributed, name) is function
    assert fleet.fleet.__dict__ == attributes
    assert (tracker.states_, tracker.seeds_) == (kept, {11})
    assert not paddle.distributed.is_initialized()
    np.testing.assert_array_equal(paddle.rand([4]).numpy(), expected)
