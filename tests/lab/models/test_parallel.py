# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts that the decoder refuses, and stages."""

import itertools

import pytest

from paddle_adagc.lab.models import parallel
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.parallel import check_parallel
from paddle_adagc.lab.models.pipeline import stage_bounds
from paddle_adagc.parallel.topology import Axis, Topology


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "layers"),
    [
        (3, 2, [2, 1]),
        (4, 2, [2, 2]),
        (25, 4, [6, 7, 6, 6]),
        (27, 4, [7, 7, 7, 6]),
        (5, 5, [1, 1, 1, 1, 1]),
    ],
)
def test_stages_differ_by_one_layer_at_most(num_layers, num_stages, layers):
    bounds = stage_bounds(num_layers, num_stages)
    sizes = [b - a for a, b in itertools.pairwise(bounds)]
    sizes[0] -= 1  # embedding
    sizes[-1] -= 2  # norm and head
    assert sizes == layers
    assert bounds[-1] == num_layers + 3


def test_a_stage_needs_a_layer():
    with pytest.raises(ValueError, match="pp_degree=4"):
        stage_bounds(3, 4)


def spread(monkeypatch, tp, ep):
    expert = Axis(0, ep)
    monkeypatch.setattr(parallel, "tensor_parallel_degree", lambda: tp)
    monkeypatch.setattr(parallel, "topology", lambda: Topology(expert=expert))


def test_refuses_experts_that_do_not_fit(monkeypatch):
    config = DecoderConfig(moe_num_experts=6)
    spread(monkeypatch, tp=1, ep=4)
    with pytest.raises(ValueError, match="moe_num_experts=6"):
        check_parallel(config)
    spread(monkeypatch, tp=2, ep=3)
    with pytest.raises(ValueError, match="ep_degree=3 with mp_degree=2"):
        check_parallel(config)
    spread(monkeypatch, tp=2, ep=2)
    check_parallel(config)
    spread(monkeypatch, tp=1, ep=3)
    check_parallel(config)
    spread(monkeypatch, tp=1, ep=4)
    check_parallel(DecoderConfig())
