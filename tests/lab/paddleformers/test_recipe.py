# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ERNIE recipes against the paper, without PaddleFormers."""

import types
from unittest import mock

import pytest

pytest.importorskip("paddlenlp")

from adagc_lab.clips import make_clip
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.shapes import parameter_shapes
from adagc_lab.paddleformers import launch
from adagc_lab.paddleformers.launch import last_checkpoint, take_clip
from adagc_lab.paddleformers.recipe import (
    as_run_config,
    is_recipe,
    load_recipe,
)
from adagc_lab.paddleformers.units import followed
from pages import ROOT, load_tool

main = load_tool("pretrain").main

RECIPES = ROOT / "configs" / "ernie_10b_a1.4b_fp8"
RECIPE = RECIPES / "adagc.yaml"


def check(*overrides):
    """Read all that a recipe says, as ``--check`` does; count its tensors."""
    config = as_run_config(RECIPE, overrides)
    make_clip(**config.clip)
    shapes = parameter_shapes(DecoderConfig(**config.model))
    return followed(RECIPE, overrides, shapes)


UNFUSED = "ernie_model_config.fuse_attn_ffn=false"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (2578, 3853, 3828)),
        (["units=null"], (2578, 2578, 2553)),
        (["units=null", UNFUSED], (3853, 3853, 3828)),
    ],
)
def test_the_clip_follows_the_paper_s_tensors(overrides, expected):
    assert check(*overrides) == expected


MISTAKES = {
    "units={o_proj: {parts: {a: num_attention_head}}}": (
        "'num_attention_head', .* did you mean 'num_attention_heads'"
    ),
    "units={o_proj: {parts: {a: 0}}}": "parts of a must be",
    "units={q_proj: {parts: [a, b]}}": "'q_proj' matches no parameter",
    UNFUSED: "without fuse_attn_ffn.*give units=null",
    "ernie_model_config.num_key_value_heads=20": (
        "num_key_value_heads=20, .* head by head"
    ),
    "lr_scheduler=cosine": "lr_scheduler must be one of wsd",
    "lr_scheduler=wsd:21000": "less than max_steps=21000",
    "lr_scheduler=wsd:abc": "lr_scheduler='wsd:abc'",
    "decay_function=half_life": "decay_function must be one of 1-sqrt",
    "input_dir=0.5 a 0.5 b": "not one weight and one prefix",
    "compute_type=nf4": "compute_type must be one of",
    "ernie_model_config.moe_layer_start_index=1": "experts in every layer",
    "stage=VL": "stage='VL', not ernie_pretrain, PT",
    "learning_rate=0": "learning_rate must be positive",
    "split=1": "split=1: give shares",
}
"""Override -> what is said of it."""


@pytest.mark.parametrize("override", MISTAKES)
@pytest.mark.filterwarnings("ignore:the recipe has no key")
def test_what_cannot_be_expressed_is_refused(override):
    with pytest.raises(ValueError, match=MISTAKES[override]):
        check(override)


def test_what_the_run_config_says_of_the_run():
    """tests/lab/configs holds the rest against the paper's table."""
    config = as_run_config(RECIPE)
    assert config.train.precision == "float8"
    assert config.train.expert_bias_rate == 1e-3
    # PaddleFormers' pipeline model sets sqrt(0.3333 / hidden_size) itself.
    initial = DecoderConfig(**config.model).initializer_range
    assert initial == pytest.approx((0.3333 / 2560) ** 0.5, 1e-3)
    for override, steps, fraction in (
        ("max_steps=60000", 60000, 0.1),
        ("lr_scheduler=wsd:15750", 21000, 0.25),
    ):
        other = as_run_config(RECIPE, [override])
        assert other.train.max_steps == steps
        assert other.schedule.decay_fraction == pytest.approx(fraction)


def test_what_is_a_recipe(tmp_path):
    assert is_recipe(RECIPE)
    assert not is_recipe(ROOT / "configs" / "proxy" / "ernie_moe.yaml")
    assert not is_recipe(RECIPES / "nothing.yaml")
    path = tmp_path / "my.yaml"
    values = "stage: %s\nmodel_name_or_path: %s\nclip: {}\n"
    path.write_text(values % ("PT", "Qwen/Qwen3-0.6B"))
    assert is_recipe(path)
    assert load_recipe(path)["model_name_or_path"] == "Qwen/Qwen3-0.6B"
    path.write_text(values % ("PT", "./nothing"))
    with pytest.raises(FileNotFoundError, match=r"no model config .*nothing"):
        load_recipe(path)
    for stage in ("SFT", "DPO", "VL-SFT"):
        path.write_text(values % (stage, "./nothing"))
        with pytest.raises(ValueError, match=rf"'{stage}'.*adagc-run before"):
            is_recipe(path)


def test_what_paddleformers_is_given():
    recipe = load_recipe(RECIPE)
    _, options = take_clip(given := {**recipe})
    assert recipe.keys() - given.keys() == {"clip", "units"}
    assert options.units is recipe["units"]
    recipe = load_recipe(RECIPES / "globalgc_eps1e-8.yaml")
    args = types.SimpleNamespace(max_grad_norm=0.0)
    with mock.patch.object(launch, "attach") as attach:
        trainer = types.SimpleNamespace(args=args)
        launch.clip_trainer(trainer, *take_clip(recipe))
    assert attach.call_args.args[1] is None  # PaddleFormers' own
    assert args.max_grad_norm == 1.0


def test_last_checkpoint(tmp_path):
    assert last_checkpoint(tmp_path, 2) is None
    for step, ranks in ((9, 2), (10, 2), (11, 1)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        for rank in range(ranks):
            (folder / f"saved_signal_{rank}").touch()
    assert last_checkpoint(tmp_path, 2) == str(tmp_path / "checkpoint-10")
    with pytest.raises(ValueError, match="finished by 4 processes"):
        last_checkpoint(tmp_path, 4)


def test_command_line(capsys, tmp_path):
    (tmp_path / "file").touch()
    for override, message in (
        (f"output_dir={tmp_path}/file/run", f"{tmp_path}/file is a file: name"),
        ("clip.lambda=1", "takes no 'lambda'"),
        (f"output_dir={tmp_path}", "adagc.yaml --check` validates the recipe"),
    ):
        assert main([str(RECIPE), override]) == 2
        assert message in capsys.readouterr().err
