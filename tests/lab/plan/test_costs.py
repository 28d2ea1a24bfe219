# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of an all-reduce, against sums by hand, and of the paper's runs."""

import pytest
from adagc_lab.plan.costs import (
    PAPER_RUNS,
    Interconnect,
    compare,
    parse_interconnect,
)

SIMPLE = Interconnect(
    gpus_per_node=4,
    launch_us=100.0,
    nvlink_us=1.0,
    ib_ring_us=10.0,
    ib_tree_us=20.0,
    nvlink_gb_per_s=8.0,
    ib_gb_per_s=2.0,
)


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "ring", "tree"),
    [
        ([3], 10**6, 0.0, 0.0),
        # One node: 2 * 3 messages; 1.5 and 2 times 8 kB at 8 kB/us.
        ([0, 1, 2, 3], 8000, 100 + 6 + 1.5, 100 + 6 + 2),
        # Two ranks on two nodes: 2 messages; 4 kB at 2 kB/us.
        ([0, 4], 4000, 100 + 20 + 2, 100 + 40 + 4),
        # Eight on two nodes: 14 messages, 2 of them between nodes.
        (range(8), 0, 100 + 12 + 20, 100 + 6 + 40),
        # Three nodes: a tree of depth 2.
        ([0, 4, 8], 0, 100 + 40, 100 + 80),
    ],
)
def test_alpha_beta_model(ranks, num_bytes, ring, tree):
    found = SIMPLE.all_reduce_us(ranks, num_bytes)
    assert found == pytest.approx((ring, tree))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ib_gb_pr_s=25", "did you mean 'ib_gb_per_s'"),
        ("ib_gb_per_s=fast", "ib_gb_per_s must be a number, got 'fast'"),
        ("ib_gb_per_s=0", "ib_gb_per_s must be greater than 0, got '?0"),
        ("gpus_per_node=1.5", "gpus_per_node must be an integer, got '1.5'"),
    ],
)
def test_numbers_of_the_interconnect(setting, message):
    parsed = parse_interconnect(["ib_gb_per_s=1e3", "gpus_per_node=4"])
    assert parsed == Interconnect(ib_gb_per_s=1000.0, gpus_per_node=4)
    with pytest.raises(ValueError, match=message):
        parse_interconnect([setting])


@pytest.mark.slow
def test_paper_table():
    predictions = compare(Interconnect())
    assert {found.run for found in predictions} == {*PAPER_RUNS}
    assert len(predictions) == 3 * 3 + 1
    for found in predictions:
        run = found.run
        gap = found.global_gc_us - found.adagc_us
        hours = gap * 1e-6 / 3600 * run.steps * run.num_gpus
        assert found.hours_saved == pytest.approx(hours)
        assert found.hours_saved < run.global_gc_hours - run.adagc_hours
    assert [run.num_gpus for run in PAPER_RUNS] == [256, 64, 256, 256]
