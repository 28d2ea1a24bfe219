# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every recipe against the paper's tables, and its proxy against the recipe."""

import json
import operator

import pytest
from adagc_lab.models.families import decoder_config
from adagc_lab.models.shapes import model_size
from adagc_lab.paddleformers.recipe import (
    as_run_config,
    is_recipe,
    model_settings,
)
from adagc_lab.paddleformers.recipe import load_recipe as load_ernie
from adagc_lab.train.parse import load_config, read_values
from lab.configs.paper_table import (
    CLIP,
    DEGREES,
    EPSILON,
    HYPER_PARAMETERS,
    T_START,
    TOKENS,
)
from lab.train.runs import CONFIGS, proxy_values, run_in

MODELS = ("llama2_1.3b", "llama2_7b", "qwen3_1.7b", "mixtral_8x1b")


def recipes(*folders):
    return [
        path.relative_to(CONFIGS).with_suffix("")
        for folder in folders
        for path in sorted((CONFIGS / folder).glob("*.yaml"))
        if path.stem != "base"
    ]


RECIPES = recipes(*MODELS)
ERNIE = recipes("ernie_10b_a1.4b_fp8")
FORMERS = recipes("paddleformers")
"""For PaddleFormers' stage PT, which has no Mixtral and no CLIP."""

ERNIE_PROXY = "ernie_10b_a1.4b"

# Sections and keys that a proxy may give other values than its recipe.
SIZES = {
    section: frozenset(keys.split())
    for section, keys in {
        "model": "vocab_size hidden_size intermediate_size num_hidden_layers "
        "num_attention_heads num_key_value_heads head_dim "
        "moe_intermediate_size max_position_embeddings initializer_range",
        "data": "kind prefix seq_length validation_prefix validation_size",
        "schedule": "learning_rate warmup_steps",
        "train": "output_dir max_steps seed batch_size precision log_every "
        "gradient_accumulation_steps eval_every save_every",
        "record": "tensors moments",
        "parallel": "dp sharding tp pp ep",
    }.items()
}
APPROXIMATE = ("decay_fraction",)
ADAMW = ("beta1", "beta2", "weight_decay")


def load(recipe):
    path = CONFIGS / f"{recipe}.yaml"
    return as_run_config(path) if is_recipe(path) else load_config(path)


every_recipe = pytest.mark.parametrize("recipe", [*RECIPES, *ERNIE], ids=str)
every_run = pytest.mark.parametrize("recipe", RECIPES, ids=str)
every_ernie = pytest.mark.parametrize("recipe", ERNIE, ids=str)


def test_there_is_every_recipe():
    assert DEGREES.keys() == HYPER_PARAMETERS.keys() - {"qwen3_1.7b"}
    assert len(RECIPES) == 2 * len(MODELS) + 4  # Muon's, another beta2
    assert {recipe.name for recipe in ERNIE} == EPSILON.keys()
    without = {"mixtral_8x1b"}  # PaddleFormers 1.2.0 has no such model
    assert {recipe.name for recipe in FORMERS} == {*MODELS} - without


@pytest.mark.parametrize("recipe", FORMERS, ids=str)
def test_a_recipe_for_stage_pt_is_our_own_run(recipe):
    """The same model, schedule, optimizer, clip, batch and layout."""
    theirs = load(recipe)
    ours = load_config(CONFIGS / recipe.name / "adagc.yaml")
    model = {
        name: getattr(decoder_config(ours.model), name) for name in theirs.model
    }
    assert theirs.model == model
    for section in ("optimizer", "clip"):
        assert getattr(theirs, section) == getattr(ours, section)
    schedules = (run.schedule.model_dump() for run in (theirs, ours))
    names = ("kind", "learning_rate", "warmup_steps", "min_ratio")
    first, second = ([schedule[n] for n in names] for schedule in schedules)
    assert (first[:3], first[3]) == (second[:3], pytest.approx(second[3]))
    for key in (
        *("global_batch", "train.max_steps", "train.batch_size"),
        *("train.precision", "data.prefix", "data.seq_length"),
        *("parallel.tp", "parallel.pp", "parallel.num_data_ranks"),
    ):
        value = operator.attrgetter(key)
        assert value(theirs) == value(ours), key


@every_recipe
def test_recipe_is_the_table_s(recipe):
    config, name = load(recipe), recipe.parts[0]
    model, paper = decoder_config(config.model), HYPER_PARAMETERS[name]
    sizes = {
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "ffn_size": model.moe_intermediate_size,
        "num_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_key_value_heads,
        "num_shared_experts": model.moe_num_shared_experts,
        "num_routed_experts": model.moe_num_experts,
        "num_experts_per_token": model.moe_top_k,
        "sequence_length": config.data.seq_length,
        "batch_size": config.global_batch,
        "iterations": config.train.max_steps,
        "learning_rate": config.schedule.learning_rate,
        "lr_decay": config.schedule.kind,
        "warmup_iterations": config.schedule.warmup_steps,
    }
    assert sizes == {key: paper.get(key, sizes[key]) for key in sizes}
    if "num_routed_experts" not in paper:
        assert model.moe_num_experts == model.moe_num_shared_experts == 0
    tokens = sizes["batch_size"] * sizes["sequence_length"]
    tokens *= sizes["iterations"]
    assert tokens == pytest.approx(TOKENS[name], rel=0.05)
    assert config.data.kind == "mmap"
    assert model.max_position_embeddings == paper["sequence_length"]

    optimizer = config.optimizer
    expected = {key: paper[key] for key in ADAMW}
    if recipe.name.endswith("beta2_0.95"):
        assert expected["beta2"] == 0.999
        expected["beta2"] = 0.95
    assert {key: getattr(optimizer, key) for key in ADAMW} == expected
    is_muon = recipe.name.startswith("muon")
    assert optimizer.name == ("muon" if is_muon else "adamw")
    is_ernie = recipe in ERNIE
    assert optimizer.epsilon == (EPSILON[recipe.name] if is_ernie else 1e-8)

    keys = ("lambda_abs", "lambda_rel", "beta")
    clip = {"name": "adagc", "t_start": T_START, **{k: paper[k] for k in keys}}
    if "globalgc" in recipe.name:
        clip = {"name": "global_norm", "lambda_abs": paper["lambda_abs"]}
    assert config.clip == clip

    parallel = config.parallel
    if name in DEGREES:
        found = {key: getattr(parallel, key) for key in ("tp", "pp", "ep")}
        found["dp"] = parallel.num_data_ranks
        assert found == {"ep": 1, **DEGREES[name]}
        assert max(parallel.dp, parallel.sharding) == DEGREES[name]["dp"]

    if paper["precision"] == "float8":  # in the experts; their own switch
        settings = model_settings(load_ernie(CONFIGS / f"{recipe}.yaml"))
        assert settings["use_fp8_mlp"] is True
        assert config.train.precision in ("bfloat16", "float8")
    else:
        assert config.train.precision == paper["precision"]


@pytest.mark.parametrize("name", ["adagc", "globalgc"])
def test_clip_s_recipe_is_the_appendix_s(name):
    config = load(f"clip_vit_b32/{name}")
    assert {key: operator.attrgetter(key)(config) for key in CLIP} == CLIP
    assert config.model["patch_dropout"] == 0.5


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("config.json")), ids=str)
def test_no_model_has_biases(path):
    """The paper's table: attention_bias False; none has others."""
    settings = json.loads(path.read_text())
    assert settings.get("use_bias", settings.get("attention_bias")) is False
    assert not settings.get("mlp_bias")


@every_run
def test_variants_change_what_their_name_says(recipe):
    """A variant's file holds its clip, its optimizer and its directory."""
    values, base = (
        load(path).to_dict() for path in (recipe, recipe.with_name("adagc"))
    )
    assert values["train"].pop("output_dir") == f"outputs/{recipe}"
    del base["train"]["output_dir"]
    parts = {"globalgc": "clip", "muon": "optimizer", "beta2": "optimizer"}
    changed = {key for key in base if values[key] != base[key]}
    assert changed == {parts[name] for name in parts if name in recipe.name}


@every_run
def test_proxy_differs_in_size_and_data_alone(recipe):
    proxy = read_values(CONFIGS / f"proxy/{recipe}.yaml")
    full = read_values(CONFIGS / f"{recipe}.yaml")
    for section, values in full.items():
        for key, value in values.items():
            if key not in SIZES.get(section, ()):
                assert proxy[section][key] == value, (section, key)
    for section, values in proxy.items():
        added = values.keys() - full.get(section, {}).keys()
        assert added <= SIZES.get(section, frozenset()), section


@every_ernie
def test_proxy_of_ernie_differs_in_size_and_data_alone(recipe):
    """PaddleFormers' keys cannot be a proxy's base: it states them again."""
    path = f"proxy/{ERNIE_PROXY}/{recipe.name}_fp8.yaml"
    proxy = load_config(CONFIGS / path).to_dict()
    full = load(recipe).to_dict()
    model = decoder_config(proxy["model"])  # with its defaults
    proxy["model"] = {key: getattr(model, key) for key in full["model"]}
    for section in ("model", "optimizer", "schedule", "clip"):
        for key, value in full[section].items():
            if key not in SIZES.get(section, ()):
                value = pytest.approx(value) if key in APPROXIMATE else value
                assert proxy[section][key] == value, (section, key)
    for key in ("expert_bias_rate", "precision"):
        assert proxy["train"][key] == full["train"][key]


@pytest.mark.parametrize(
    "path",
    [str(recipe) for recipe in RECIPES]
    + [f"{ERNIE_PROXY}/{r.name}{end}" for r in ERNIE for end in ("", "_fp8")],
)
def test_proxy_trains(path, tmp_path):
    """One process, less than 1.3 million parameters, a folder of its own."""
    config = load_config(CONFIGS / f"proxy/{path}.yaml")
    assert config.parallel.num_processes == 1
    assert model_size(decoder_config(config.model)).parameters < 1_300_000
    assert config.train.output_dir == f"outputs/proxy/{path}"
    values = proxy_values(
        path,
        tmp_path,
        "train.max_steps=6",
        "train.batch_size=4",
        "train.save_every=0",
        "train.visualdl=false",
        "schedule.warmup_steps=2",
        "data.validation_size=4",
    )
    record = run_in(tmp_path, values)
    assert record.num_steps == 6
    assert record.loss[-1] < record.loss[0]
