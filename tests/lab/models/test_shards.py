# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rank holds by the plan, and what it really holds."""

import math
from pathlib import Path

import pytest
from core.parallel.ranks import run_on_ranks

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.presets import decoder_config
from paddle_adagc.lab.models.rank_weights import parameters_by_key
from paddle_adagc.lab.models.shards import (
    Degrees,
    local_shapes,
    split_axis,
    stage_of,
)
from paddle_adagc.lab.models.sizes import num_parameters, parameter_shapes
from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.processes import start_processes
from paddle_adagc.lab.train.tasks import LanguageTask

PROXIES = Path(__file__).parents[3] / "configs/proxy"
NO_RECORD = ("record.tensors=false", "record.moments=false")
TP2_PP2 = ("parallel.tp=2", "parallel.pp=2", *NO_RECORD)
EP2_PP2 = (
    "parallel.ep=2",
    "parallel.sharding=2",
    "parallel.sharding_split_param=true",
    "parallel.pp=2",
    "train.save_every=0",
    *NO_RECORD,
)


def build(proxy, overrides):
    """This rank's place, and the shapes of the model that it built."""
    config = load_config(PROXIES / proxy, overrides)
    start_processes(config)
    from paddle_adagc.parallel.topology import read_topology

    place = read_topology()
    model = LanguageTask(config).build_model()
    shapes = {k: tuple(p.shape) for k, p in parameters_by_key(model).items()}
    return place.pipe.rank, place.expert.rank, shapes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proxy", "overrides"),
    [
        ("qwen3_1.7b/adagc.yaml", TP2_PP2),  # a tied head
        pytest.param(
            "mixtral_8x1b/adagc.yaml", EP2_PP2, marks=pytest.mark.long
        ),
    ],
)
def test_plan_is_what_the_ranks_of_a_proxy_hold(proxy, overrides):
    config = load_config(PROXIES / proxy, overrides)
    parallel = config.parallel
    degrees = Degrees(parallel.tp, parallel.pp, parallel.ep)
    model = decoder_config(config.model)
    ranks = run_on_ranks(build, 4, proxy=proxy, overrides=overrides)
    assert len({(stage, expert) for stage, expert, _ in ranks}) == (
        parallel.pp * parallel.ep
    )
    for stage, expert, held in ranks:
        planned = local_shapes(
            model, degrees, stage=stage, expert_parallel_rank=expert
        )
        assert held == planned


def config(**options):
    return DecoderConfig(num_hidden_layers=5, moe_num_experts=6, **options)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_and_experts_add_up_to_the_model(tied):
    model = config(tie_word_embeddings=tied)
    degrees = Degrees(pp=3, ep=2)
    counts = {}
    for stage in range(3):
        for rank in range(2):
            shapes = local_shapes(
                model, degrees, stage=stage, expert_parallel_rank=rank
            )
            for key in shapes:
                counts.setdefault(key, []).append((stage, rank))
    assert counts.keys() == parameter_shapes(model).keys()
    for key, holders in counts.items():
        if key == "model.embed_tokens.weight" and tied:
            assert holders == [(0, 0), (0, 1), (2, 0), (2, 1)]
        else:
            assert len(holders) == (1 if ".experts." in key else 2), key


def test_tensor_parallel_ranks_hold_halves_of_matrices():
    model = config()
    halves = local_shapes(model, Degrees(tp=2))
    for key, shape in parameter_shapes(model).items():
        is_shared = len(shape) == 1 or ".gate.weight" in key
        assert (split_axis(key) is None) == is_shared, key
        whole, part = math.prod(shape), math.prod(halves[key])
        assert part == (whole if is_shared else whole // 2)
    one = local_shapes(model, Degrees())
    assert sum(map(math.prod, one.values())) == num_parameters(model)


def test_experts_on_several_ranks_are_whole_under_tensor_parallelism():
    model = config()
    whole, own = parameter_shapes(model), local_shapes(model, Degrees(2, 1, 2))
    halves = local_shapes(model, Degrees(tp=2))
    for key, shape in own.items():
        expected = whole if ".experts." in key else halves
        assert shape == expected[key], key


def test_ends_of_the_model_are_on_the_outer_stages():
    model = config()
    assert stage_of("model.embed_tokens.weight", model, 3) == [0]
    assert stage_of("model.norm.weight", model, 3) == [2]
    assert stage_of("lm_head.weight", model, 3) == [2]
    layers = [
        stage_of(f"model.layers.{index}.mlp.gate.weight", model, 3)[0]
        for index in range(5)
    ]
    assert layers == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        (Degrees(tp=3), "not a multiple of the 3"),
        (Degrees(ep=4), "moe_num_experts=6"),
        (Degrees(tp=2, ep=3), "use a multiple of mp_degree"),
        (Degrees(pp=6), "pp_degree=6 with num_hidden_layers=5"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(degrees, message):
    with pytest.raises(ValueError, match=message):
        local_shapes(config(), degrees)
