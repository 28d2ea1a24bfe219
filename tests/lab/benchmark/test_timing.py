# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is timed and counted is what it says; each table has its rows."""

import math

import numpy as np
import pytest
from adagc_lab.benchmark import clip_step, host_time, training_step
from adagc_lab.benchmark.clip_step import (
    FLOOR,
    LISTS,
    REFERENCE,
    contenders,
    make_pairs,
    recipe_shapes,
)
from adagc_lab.benchmark.gpu_hours import all_reduce_us
from adagc_lab.models.families import preset
from adagc_lab.models.shapes import model_size
from adagc_lab.train.parse import load_config
from pages import ROOT

CONFIG = ROOT / "configs/proxy/llama_low_noise.yaml"


def equal_shapes(num_tensors, num_values):
    side = round(math.sqrt(num_values / num_tensors))
    return [(side, side)] * num_tensors


@pytest.mark.parametrize("name", LISTS)
def test_lists_have_the_full_model_s_number_of_tensors(name):
    shapes = recipe_shapes(name)
    assert len(shapes) == model_size(preset(name)).tensors_without_routers
    assert 1e8 < sum(map(math.prod, shapes)) < 5e8


WHOLE = [REFERENCE, "ClipGradByNorm"]
"""Paddle's clips, which scale every tensor here."""


@pytest.mark.parametrize(
    "name",
    ["AdaGC", "AdaGC, operators only", "loop that waits per tensor", *WHOLE],
)
def test_contenders_scale_what_they_are_told_to(name):
    pairs = make_pairs(equal_shapes(4, 40_000))
    clipped = np.array([True, False, True, False])
    contender = contenders(pairs, clipped)[name]
    originals = [g.clone() for _, g in pairs]
    for _ in range(2):  # prepare brings gradients and thresholds back
        contender.prepare(originals)
        found = contender.step() or pairs
        is_smaller = [
            float(gradient.norm()) < float(original.norm())
            for (_, gradient), original in zip(found, originals, strict=True)
        ]
        assert is_smaller == [name in WHOLE or x for x in clipped]


def test_a_row_per_contender_counts_its_operator_calls():
    """They grow with the tensors only without the compiled loops."""
    few, many = (
        clip_step.compare(equal_shapes(n, 1000), 0.1, 2) for n in (10, 30)
    )
    for row in many:
        assert (len(row.seconds), min(row.seconds) > 0) == (2, True)
        assert (row.num_tensors, row.num_values) == (30, 1080)
    table = clip_step.to_markdown(many).splitlines()[2:]
    assert len(table) == len(many)
    assert table[3].startswith(f"| {REFERENCE} |")
    assert " | 1.00 | " in table[3]
    calls = {row.contender: row.operator_calls for row in many}
    growth = {x.contender: calls[x.contender] - x.operator_calls for x in few}
    assert calls[FLOOR] == growth[FLOOR] == growth["AdaGC"] == 0
    # A norm; one in ten is scaled.
    assert growth["AdaGC, operators only"] / 20 == pytest.approx(1.1)
    assert growth[REFERENCE] / 20 == 2


def test_copies_train_in_turn(monkeypatch):
    monkeypatch.setattr(training_step, "_T_START", 2)
    config = load_config(
        CONFIG,
        ["model.hidden_size=16", "train.batch_size=2", "data.seq_length=8"],
    )
    seconds = training_step.compare(config, 4)
    assert [*seconds] == ["no clip", "GlobalGC", "AdaGC"]
    assert all(len(mine) == 4 for mine in seconds.values())
    assert "| 1.000 |" in training_step.to_markdown(seconds).splitlines()[3]


def test_host_time_is_that_of_every_backend_and_of_adamw():
    found = host_time.compare(3, 2)
    assert found["AdamW"]["of_adamw"] == 1
    assert [*found][:3] == ["AdamW", *host_time.BACKENDS]
    assert all(row["ms"] > 0 for row in found.values())
    lines = host_time.to_markdown({3: found}).splitlines()
    assert len(lines) == 2 + len(found)


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "ring", "tree"),
    [
        # One node: 2 * 3 messages; 1.5 and 2 times 900 kB at 450 kB/us.
        (range(4), 900_000, 6.6 + 3.6 + 3, 6.6 + 3.6 + 4),
        # Two ranks on two nodes: 2 messages; 1 and 2 times 100 kB.
        ([0, 8], 100_000, 6.6 + 5.4 + 2, 6.6 + 10 + 4),
        # Sixteen on two nodes: 30 messages, 2 of them between nodes.
        (range(16), 0, 6.6 + 16.8 + 5.4, 6.6 + 8.4 + 10),
        # Three nodes: a tree of depth 2.
        ([0, 8, 16], 0, 6.6 + 10.8, 6.6 + 20),
    ],
)
def test_alpha_beta_model(ranks, num_bytes, ring, tree):
    assert all_reduce_us(ranks, num_bytes) == pytest.approx((ring, tree))
