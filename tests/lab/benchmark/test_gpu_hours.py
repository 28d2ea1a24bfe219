# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of an all-reduce by hand."""

import pytest
from adagc_lab.benchmark.gpu_hours import all_reduce_us


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
