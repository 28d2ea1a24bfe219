# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleFormers' own classes take every value of the recipes, at full size."""

import copy
import dataclasses
import inspect
import json
import types

import pytest

pytest.importorskip("paddleformers")

import paddle
import paddle.distributed as dist
from adagc_lab.paddleformers.launch import take_clip
from adagc_lab.paddleformers.recipe import as_run_config, load_recipe
from adagc_lab.train.optimizers import learning_rate
from adagc_lab.train.parse import load_config
from lab.paddleformers.runs import RECIPES, import_workflow
from paddle.distributed import fleet
from paddleformers.cli.hparams import get_train_args
from paddleformers.trainer.trainer_utils import get_scheduler

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.arguments import bind_clip
from paddle_adagc.integrations.model_units import describe_tensors

PT = {
    "llama2_1.3b": {"mp": 1, "pp": 1, "sharding": 256},
    "llama2_7b": {"mp": 2, "pp": 1, "sharding": 32},
    "qwen3_1.7b": {"mp": 1, "pp": 1, "sharding": 256},
}
"""Recipes of stage PT, and fleet's degrees."""

ERNIE = {"mp": 1, "pp": 4, "sharding": 64, "ep": 8, "moe_sharding": 8}
VARIANTS = {
    **dict.fromkeys(("adagc", "globalgc_eps1e-15", "globalgc_eps1e-8"), ERNIE),
    **PT,
}
READ_ON_THE_WAY = {
    "stage",  # chooses ernie_pretrain
    "dataset_type",  # chooses input_dir
    "ernie_model_config",  # goes into the model's config
    "compute_type",  # becomes bf16
    "moe_with_send_router_loss",
}
"""Keys that PaddleFormers does not pass on to the trainer's arguments."""


def settings_of(variant, *overrides):
    folder = RECIPES.parent / "paddleformers" if variant in PT else RECIPES
    recipe = load_recipe(folder / f"{variant}.yaml", overrides)
    take_clip(recipe)
    return recipe


@pytest.fixture
def strategies(monkeypatch):
    """Stand in for the first of many processes; gives fleet's strategies."""
    found = []

    def init(is_collective, strategy):
        fleet.fleet._user_defined_strategy = strategy
        found.append(strategy)

    monkeypatch.setattr(dist, "init_parallel_env", lambda: None)
    monkeypatch.setattr(fleet, "init", init)
    monkeypatch.setattr(
        fleet.fleet, "_user_defined_strategy", None, raising=False
    )
    monkeypatch.setenv("PADDLE_RANK_IN_NODE", "0")
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_keys_are_taken_unchanged_and_give_the_layout(
    strategies, monkeypatch, variant, tmp_path
):
    degrees = {"dp": 1, **VARIANTS[variant]}
    size = degrees["sharding"] * degrees["mp"] * degrees["pp"]
    monkeypatch.setattr(dist, "get_world_size", lambda *_: size)
    settings = settings_of(variant, f"output_dir={tmp_path}")
    parsed = get_train_args(dict(settings))
    for key, value in settings.items():
        holders = [part for part in parsed if hasattr(part, key)]
        assert holders, key
        if key == "sharding":
            assert [option.value for option in parsed[-1].sharding] == [value]
        elif key == "report_to":
            assert parsed[-1].report_to == []
        elif value is not None:
            found = getattr(holders[-1], key)
            assert getattr(found, "value", found) == value, key
    is_pt = variant in PT
    assert parsed[-1].global_batch_size == (2048 if is_pt else 4096)
    hybrid = strategies[0].hybrid_configs
    assert {name: hybrid[f"{name}_degree"] for name in degrees} == degrees
    assert hybrid["sharding_configs"].split_param == (not is_pt)
    assert not hybrid["sharding_configs"].tensor_fusion


def test_every_key_is_one_of_ernie_pretrain_s():
    """Of the trainer's arguments, or of the model's config."""
    kinds = import_workflow()
    settings = settings_of("adagc")
    fields = {field.name for field in dataclasses.fields(kinds.AllArguments)}
    assert set(settings) - fields == READ_ON_THE_WAY
    options = set(inspect.signature(kinds.ErnieMoEConfig.__init__).parameters)
    given = json.loads((RECIPES / "config.json").read_text())
    # Hugging Face's own, and one that Top2Gate reads and has no default.
    assert set(given) - options == {
        "model_type",
        "architectures",
        "tie_word_embeddings",
        "moe_gate",
    }
    config = kinds.ErnieMoEConfig.from_pretrained(str(RECIPES))
    for name, value in given.items():
        assert getattr(config, name) == value, name
    for name, value in settings["ernie_model_config"].items():
        default = getattr(config, name)
        if isinstance(value, dict):
            assert set(default) <= set(value), name
        else:
            assert isinstance(default, bool), name


@pytest.mark.parametrize("variant", ["adagc", *PT])
def test_schedule_is_that_of_our_config(variant):
    settings = settings_of(variant)
    last = settings["max_steps"]
    if variant in PT:
        config = load_config(RECIPES.parent / variant / "adagc.yaml")
        theirs = get_scheduler(
            settings["lr_scheduler_type"],
            learning_rate=settings["learning_rate"],
            num_warmup_steps=settings["warmup_steps"],
            num_training_steps=last,
            min_lr=settings["min_lr"],
        )
    else:
        import_workflow()
        from paddleformers.cli.train.ernie_pretrain.src import lr_schedulers

        config = as_run_config(RECIPES / "adagc.yaml")
        theirs = lr_schedulers.get_wsd_schedule_with_warmup(
            3e-4, 2000, last, decay_function="1-sqrt", min_lr=0.0
        )
    for step in (2000, 5000, last * 9 // 10 - 1, last * 9 // 10, last - 1):
        theirs.step(step)
        ours = learning_rate(config.schedule, step, last)
        assert theirs() == pytest.approx(ours, rel=1e-5), step


@pytest.fixture
def full_size(monkeypatch):
    """The recipe's model, without memory, on one rank."""
    workflow = import_workflow()
    from paddleformers.cli.train.ernie_pretrain.models.ernie import (
        modeling_moe,
    )
    from paddleformers.cli.train.ernie_pretrain.models.moe import moe_layer

    def copied(value):
        """Copies of a layer would have memory."""
        if isinstance(value, paddle.nn.Layer):
            return type(value)(value.config)
        return copy.deepcopy(value)

    monkeypatch.setattr(modeling_moe, "deepcopy", copied)
    # Initial values would need memory, too.
    monkeypatch.setattr(
        modeling_moe.ErniePretrainedModel, "_init_weights", lambda *_: None
    )
    monkeypatch.setattr(paddle.Tensor, "scale_", lambda tensor, *_: tensor)
    # Without fleet the layer looks for an attribute that it does not have.
    monkeypatch.setattr(
        moe_layer.MOELayer,
        "config",
        types.SimpleNamespace(offline_quant_expert_weight=False),
        raising=False,
    )
    recipe = load_recipe(RECIPES / "adagc.yaml")
    config = workflow.ErnieMoEConfig.from_pretrained(str(RECIPES))
    workflow.update_model_config_from_args(config, recipe["ernie_model_config"])
    config.moe_group = "dummy"
    with paddle.LazyGuard():
        return workflow.ErnieMoEForCausalLM(config), recipe["units"]


def test_the_clip_follows_the_paper_s_3828_tensors(full_size):
    model, units = full_size
    num_biases = 25 * 48
    sizes = [parameter.size for parameter in model.parameters()]
    assert sum(sizes) - num_biases == 10_559_741_440
    clip, declared = ClipGradByAdaGC(), ClipGradByAdaGC()
    bind_clip(clip, model, None, None)
    assert describe_tensors(model).startswith("3878 tensors in 2603 parameters")
    declared.bind(model, units)  # the recipe says the same
    shapes = {t.key: t.shape for t in clip._progress.tensors.layout}
    assert [*shapes] == declared._progress.tensors.keys
    routers, biases = (
        {key for key in shapes if key.endswith(end)}
        for end in (".gate.weight", ".e_score_correction_bias")
    )
    assert len(routers) == len(biases) == 25
    others = shapes.keys() - routers - biases
    assert len(others) == (9 + 3 * 48) * 25 + 3 == 3828
    for name, width in {
        "self_attn.q_proj": 2560,
        "self_attn.k_proj": 512,
        "self_attn.v_proj": 512,
        "mlp.experts.47.gate_proj": 1024,
        "mlp.experts.47.up_proj": 1024,
    }.items():
        assert shapes[f"ernie.layers.24.{name}.weight"] == (2560, width)
