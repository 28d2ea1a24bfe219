# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What clips communicate on real fleet, and operations of a GPU, by count."""

from pathlib import Path

import pytest
from core.parallel.ranks import run_on_ranks
from helpers import long_but

from paddle_adagc.lab.benchmark.clip_step import equal_shapes
from paddle_adagc.lab.benchmark.collectives import (
    LAYOUTS,
    record_communication,
)
from paddle_adagc.lab.benchmark.counts import WIDTHS, count_on_gpu, gpu_table
from paddle_adagc.lab.models.families import decoder_config
from paddle_adagc.lab.models.shapes import parameter_shapes
from paddle_adagc.lab.train.config import ParallelConfig
from paddle_adagc.lab.train.parse import load_config

CONFIG = Path(__file__).parents[3] / "configs/proxy/ernie_moe.yaml"
T_START, NUM_STEPS = 2, 4
SMALL = (
    "model.hidden_size=16",
    "model.moe_intermediate_size=16",
    "model.num_hidden_layers=2",
    "train.batch_size=4",
    "train.gradient_accumulation_steps=2",
    f"train.max_steps={NUM_STEPS}",
    "train.save_every=0",
    "train.visualdl=false",
    "data.validation_size=16",
    "record={tensors: false, moments: false}",
    f"clip.t_start={T_START}",
)


def tensors(kind):
    """Number of the model's tensors of a kind."""
    shapes = parameter_shapes(decoder_config(load_config(CONFIG, SMALL).model))
    experts = [key for key in shapes if ".experts." in key]
    split = [
        key for key in shapes if "norm" not in key and ".gate.weight" not in key
    ]
    return {
        "all": len(shapes),
        "dense": len(shapes) - len(experts),
        "experts of a rank": len(experts) // 2,
        "split": len(split),
    }[kind]


# Per layout what an adaptive step does: (group, kind of tensors summed).
EXPECTED = {
    "DP2": [],
    "PP2": [],
    "V1 x2": [],
    "TP2": [("model", "split")],
    "SP with TP2": [("model", "split")],
    "TP2 x DP2": [("model", "split")],
    "TP2 x V1": [("model", "split")],
    "V2 x2": [("sharding", "all")],
    "TP2 x V2": [("sharding", "all"), ("model", "split")],
    "EP2": [("sharding", "dense")],
    "EP2 x V2 x4": [
        ("sharding", "dense"),
        ("moe_sharding", "experts of a rank"),
    ],
}


def count(overrides):
    """Collectives of the clip on this rank, per step."""
    ledger = record_communication(load_config(CONFIG, overrides))
    return [
        [(call.name, call.group, call.num_bytes) for call in calls]
        for calls in ledger.steps
    ]


def run(name, tmp_path):
    layout = LAYOUTS[name]
    overrides = [
        *SMALL,
        f"train.output_dir={tmp_path}/run",
        *(f"parallel.{key}={value}" for key, value in layout.items()),
    ]
    size = ParallelConfig(**layout).num_processes
    return run_on_ranks(count, size, overrides=overrides)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", long_but(("TP2 x V2", "EP2 x V2 x4"), EXPECTED)
)
def test_collectives_of_a_step(name, tmp_path):
    adaptive = [
        ("all_reduce", group, 4 * tensors(kind))
        for group, kind in EXPECTED[name]
    ]
    for steps in run(name, tmp_path):
        assert steps[T_START:] == [adaptive] * (NUM_STEPS - T_START)
        for step in steps[:T_START]:
            assert step[: len(adaptive)] == adaptive
            scalar = step[len(adaptive) :]
            assert [(c, size) for c, _, size in scalar] == (
                [] if name == "DP2" else [("all_reduce", 24)]
            )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "group", "kind"),
    [("TP2 x PP2", "model", "split"), ("PP2 x V2", "sharding", "all")],
)
def test_pipeline_stages_sum_their_own_tensors(name, group, kind, tmp_path):
    sizes = []
    for steps in run(name, tmp_path):
        ((collective, summed_over, size),) = steps[-1]
        assert (collective, summed_over) == ("all_reduce", group)
        assert steps[T_START:] == [steps[-1]] * (NUM_STEPS - T_START)
        sizes.append(size)
    assert sum(sizes) == 2 * 4 * tensors(kind)  # two ranks per stage


@pytest.mark.parametrize(
    ("num_tensors", "operations"), [(196, 5), (219, 5), (747, 6), (3828, 12)]
)
@pytest.mark.parametrize(("share", "passes"), [(0.0, 1), (0.1, 1.2), (1.0, 3)])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_kernels_are_a_few_launches_and_read_what_they_scale(
    num_tensors, operations, share, passes, dtype
):
    shapes = equal_shapes(num_tensors, 10_000_000)
    reference, operators, fused = count_on_gpu(shapes, share, dtype)
    assert fused.operations == operations
    assert fused.bytes_per_value == pytest.approx(passes * WIDTHS[dtype])
    assert reference.operations == 3 * num_tensors
    assert operators.operations > reference.operations
    table = gpu_table({dtype: [reference, operators, fused]})
    assert table.count("\n") == 2 + 3
