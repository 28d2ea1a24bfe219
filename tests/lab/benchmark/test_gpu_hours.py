# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of an all-reduce by hand, and those of the paper's runs."""

import pytest
from adagc_lab.benchmark.gpu_hours import all_reduce_us, compare


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


# Counted by a dry run of fleet's groups and of both clips on these models.
COUNTED = {
    ("Llama-2 1.3B", "DP"): (0.0, 0.0),
    ("Llama-2 1.3B", "sharding V1"): (130.00032, 0.7222328888888888),
    ("Llama-2 1.3B", "sharding V2"): (130.00032, 65.75727288888888),
    ("Llama-2 7B", "DP"): (7.800008888888889, 8.30204187654321),
    ("Llama-2 7B", "sharding V1"): (88.20033777777779, 8.30204187654321),
    ("Llama-2 7B", "sharding V2"): (88.20033777777779, 48.55058844444446),
    ("Mixtral 8x1B", "DP"): (0.0, 0.0),
    ("Mixtral 8x1B", "sharding V1"): (130.00032, 0.1805582222222222),
    ("Mixtral 8x1B", "sharding V2"): (130.00032, 65.30007822222221),
    ("ERNIE 10B-A1.4B", "sharding V2"): (116.60048, 81.94088838095239),
}


def test_paper_table():
    found = {
        (p.run.model, p.layout): (p.global_gc_us, p.adagc_us) for p in compare()
    }
    assert found.keys() == COUNTED.keys()
    for key, times in COUNTED.items():
        assert found[key] == pytest.approx(times), key
