# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest

from paddle_adagc.lab.record.files import QUANTITIES, RunRecord
from paddle_adagc.lab.report.judged import group_measures

NAMES = [
    "model.embed_tokens.weight",
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.experts.0.up_proj.weight",
    "model.layers.0.mlp.experts.1.up_proj.weight",
    "model.layers.0.mlp.shared_experts.up_proj.weight",
]


def record(names, tensors, **metrics):
    """Three steps of the same values, the first of which is not judged."""
    block = np.tile(np.array(tensors, np.float32), (3, 1, 1))
    block[0] *= 100
    return RunRecord(
        name="run",
        run={},
        metrics={"loss": np.ones(3), **metrics},
        faults={},
        tensor_names=names,
        tensors={q: block[:, i] for i, q in enumerate(QUANTITIES)},
    )


def test_groups_by_hand():
    run = record(
        NAMES,
        [
            [4.0, 4.0, 4.0, 0.0, 4.0],  # norm; expert 1 is idle
            [1.0, 2.0, 4.0, 0.0, 0.4],  # clipped
            [0.1, 0.2, 0.3, 0.5, 0.6],  # gamma
            [1.0, 2.0, 3.0, 5.0, 6.0],
            [10.0, 20.0, 30.0, 50.0, np.nan],
        ],
        expert_max_violation=np.array([9.0, 1.0, 2.0]),
        idle_experts=np.array([9.0, 1.0, 0.0]),
    )
    assert group_measures(run, 1) == pytest.approx(
        {
            "h_median": 0.5,
            "router_h_median": 0.5,
            "router_gamma": 0.2,
            "router_moment1": 2.0,
            "router_moment2": 20.0,
            "experts_h_median": 1.0,
            "experts_gamma": 0.4,
            "experts_moment1": 4.0,
            "experts_moment2": 40.0,
            "expert_max_violation": 1.5,
            "idle_experts": 0.5,
        }
    )


def test_what_was_not_recorded_is_left_out():
    nan = [np.nan]
    dense = record(NAMES[:1], [[2.0], [1.0], nan, nan, nan])
    assert group_measures(dense, 1) == {"h_median": 0.5}
    assert group_measures(record([], np.zeros((5, 0))), 1) == {}
