# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters of whole models, and of the ranks that share one."""

import math
from pathlib import Path

import pytest
from core.parallel.ranks import run_on_ranks

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.families import decoder_config, preset
from paddle_adagc.lab.models.initialization import plain_config
from paddle_adagc.lab.models.rank_weights import parameters_by_key
from paddle_adagc.lab.models.shapes import (
    Degrees,
    local_shapes,
    model_size,
    parameter_shapes,
    split_axis,
    stage_of,
)
from paddle_adagc.lab.models.vision_text.config import PRESETS, CLIPConfig
from paddle_adagc.lab.models.vision_text.model import CLIP
from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.processes import start_processes
from paddle_adagc.lab.train.tasks import LanguageTask

EXPERTS = {
    "moe_num_experts": 4,
    "moe_intermediate_size": 12,
    "moe_num_shared_experts": 1,
    "moe_correction_bias": True,
    "moe_layers": [1],
}
MODELS = {
    "llama": {},
    "qwen3": {"head_dim": 8, "qk_norm": True, "tie_word_embeddings": True},
    "mixtral": {"num_key_value_heads": 2, "moe_num_experts": 4},
    "ernie": EXPERTS,
    "scaled embed": {"initialization": "scaled_embed"},
    "ernie, scaled embed": {**EXPERTS, "initialization": "scaled_embed"},
    "wesar": {"initialization": "wesar"},
    "ernie, wesar": {**EXPERTS, "initialization": "wesar"},
}


def shapes_of(model):
    return [(n, tuple(p.shape)) for n, p in model.named_parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_counts_are_the_model_s(name):
    model = DecoderForCausalLM(DecoderConfig(**MODELS[name]))
    assert [*parameter_shapes(model.config).items()] == shapes_of(model)
    size = model_size(model.config)
    assert size.parameters == sum(int(p.size) for p in model.parameters())
    assert size.tensors == len(model.parameters())
    routers = size.tensors - size.tensors_without_routers
    names = [key for key, _ in shapes_of(model)]
    assert routers == sum(".mlp.gate." in key for key in names)
    if model.config.tie_word_embeddings:
        assert size.active_parameters == size.parameters
    else:
        assert size.active_parameters < size.parameters


@pytest.mark.parametrize("initialization", ["scaled_embed", "wesar"])
@pytest.mark.parametrize("options", [{}, EXPERTS])
def test_plain_config_has_no_scales(initialization, options):
    own = DecoderConfig(**options, initialization=initialization)
    plain = plain_config(own)
    assert (plain.initialization, own.initialization) == (
        "normal",
        initialization,
    )
    matrices = sum(len(s) == 2 for s in parameter_shapes(plain).values())
    extra = matrices if initialization == "wesar" else 0
    sizes = model_size(own), model_size(plain)
    assert sizes[0].parameters == sizes[1].parameters + extra
    assert sizes[0].tensors == sizes[1].tensors + extra


def test_shapes_of_clip_are_the_model_s():
    config = CLIPConfig(
        vision_width=24, vision_heads=3, text_layers=1, mlp_ratio=3
    )
    assert [*parameter_shapes(config).items()] == shapes_of(CLIP(config))


def test_vit_b_32_has_openai_s_size():
    config = CLIPConfig.from_fields({"preset": "clip-vit-b-32"}, PRESETS)
    size = model_size(config)
    assert size.parameters == size.active_parameters == 151_277_313
    assert size.tensors == size.tensors_without_routers == 302


@pytest.mark.parametrize(
    ("name", "total", "active", "tensors", "routers"),
    [
        ("llama2-1.3b", 1.339e9, 1.274e9, 219, 0),
        ("llama2-7b", 6.738e9, 6.607e9, 291, 0),
        ("qwen3-1.7b", 1.721e9, 1.721e9, 310, 0),
        ("mixtral-8x1b", 7.001e9, 1.953e9, 747, 24),
        ("ernie-10b-a1.4b", 10.56e9, 1.448e9, (9 + 3 * 48) * 25 + 28, 25),
    ],
)
def test_counts_fit_the_names_of_the_paper(
    name, total, active, tensors, routers
):
    size = model_size(preset(name))
    assert size.parameters == pytest.approx(total, rel=1e-3)
    assert size.active_parameters == pytest.approx(active, rel=1e-3)
    assert (size.tensors, size.gamma_bytes) == (tensors, 4 * tensors)
    assert size.tensors_without_routers == tensors - routers


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
    assert one == parameter_shapes(model)


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
    assert stage_of("model.embed_tokens.alpha", model, 3) == [0]
    assert stage_of("lm_head.alpha", model, 3) == [2]
    assert stage_of("model.layers.0.self_attn.q_proj.alpha", model, 3) == [0]
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
