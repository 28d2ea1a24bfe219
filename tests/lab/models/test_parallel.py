# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts that the decoder refuses, and stages."""

import contextlib
import itertools

import pytest
from adagc_lab.models import parallel
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.parallel import check_parallel
from adagc_lab.models.pipeline import stage_bounds

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


@pytest.mark.parametrize(
    ("options", "tp", "ep", "message"),
    [
        ({"moe_num_experts": 6}, 1, 4, "moe_num_experts=6"),
        ({"moe_num_experts": 6}, 2, 2, None),
        ({"moe_num_experts": 6}, 1, 3, None),
        ({"moe_num_experts": 6}, 2, 1, None),
        ({}, 1, 4, None),
        ({}, 8, 1, "num_attention_heads=4"),
    ],
)
def test_refuses_ranks_that_cannot_share(monkeypatch, options, tp, ep, message):
    place = Topology(model=Axis(0, tp), expert=Axis(0, ep))
    monkeypatch.setattr(parallel, "topology", lambda: place)
    is_refused = pytest.raises(ValueError, match=message)
    with is_refused if message else contextlib.nullcontext():
        check_parallel(DecoderConfig(**options))
