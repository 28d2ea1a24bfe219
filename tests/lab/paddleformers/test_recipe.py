# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ERNIE recipes against the paper, without PaddleFormers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("paddlenlp")

import paddle

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.lab.cli.pretrain import main
from paddle_adagc.lab.extensions.robust import make_clip
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.presets import preset
from paddle_adagc.lab.models.sizes import (
    num_active_parameters,
    num_parameters,
    num_tensors,
)
from paddle_adagc.lab.paddleformers.launch import (
    formers_settings,
    last_checkpoint,
    run_recipe,
)
from paddle_adagc.lab.paddleformers.names import global_expert_name
from paddle_adagc.lab.paddleformers.recipe import (
    as_run_config,
    is_recipe,
    load_recipe,
    model_settings,
)

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "configs" / "ernie_10b_a1.4b_fp8"

# The paper's table of hyper-parameters, ERNIE's column, in its order.
PAPER_MODEL = {
    "num_hidden_layers": 25,
    "hidden_size": 2560,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "use_bias": False,
    "moe_num_shared_experts": 1,
    "moe_num_experts": 48,
    "moe_k": 3,
    "max_position_embeddings": 4096,
    "use_fp8_mlp": True,
    "use_fp8_fuse_node": True,
}
PAPER_RUN = {
    "max_seq_len": 4096,
    "max_steps": 21000,
    "learning_rate": 3e-4,
    "lr_scheduler": "wsd",
    "warmup_steps": 2000,
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    # The table of GPU hours: DP=64, TP=1, PP=4, EP=8.
    "sharding_parallel_size": 64,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 4,
    "expert_model_parallel_size": 8,
}
# The three rows of its results on ERNIE.
ADAGC = {
    "name": "adagc",
    "lambda_abs": 1.0,
    "lambda_rel": 1.04,
    "beta": 0.99,
    "t_start": 100,
}
GLOBALGC = {"name": "global_norm", "lambda_abs": 1.0}
VARIANTS = {
    "adagc": (1e-15, ADAGC),
    "globalgc_eps1e-15": (1e-15, GLOBALGC),
    "globalgc_eps1e-8": (1e-8, GLOBALGC),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_are_the_papers(variant):
    recipe = load_recipe(RECIPES / f"{variant}.yaml")
    epsilon, clip = VARIANTS[variant]
    assert {key: recipe[key] for key in PAPER_RUN} == PAPER_RUN
    assert recipe["adam_epsilon"] == epsilon
    assert recipe["clip"] == clip
    model = model_settings(recipe)
    assert {key: model[key] for key in PAPER_MODEL} == PAPER_MODEL
    batch = (
        recipe["per_device_train_batch_size"]
        * recipe["gradient_accumulation_steps"]
        * recipe["sharding_parallel_size"]
    )
    assert batch == 4096


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_differ_in_epsilon_and_clip_alone(variant):
    base = load_recipe(RECIPES / "base.yaml")
    values = load_recipe(RECIPES / f"{variant}.yaml")
    assert base.keys() == values.keys()
    differing = {key for key in base if base[key] != values[key]}
    assert differing <= {"output_dir", "adam_epsilon", "clip"}


def test_counts_are_those_of_the_name():
    config = DecoderConfig(**as_run_config(RECIPES / "adagc.yaml").model)
    assert num_parameters(config) == 10_559_741_440
    assert num_active_parameters(config) == 1_447_616_000
    assert num_tensors(config, routers=False) == (9 + 3 * 48) * 25 + 3 == 3828
    assert num_tensors(config) == 3828 + 25


def test_run_config_is_the_same_run():
    config = as_run_config(RECIPES / "adagc.yaml")
    assert config.clip == ADAGC
    assert config.train.precision == "float8"
    assert config.train.max_steps == 21000
    assert config.train.expert_bias_rate == 1e-3
    assert config.parallel.num_processes == 256
    assert config.parallel.num_data_ranks == 64
    assert (config.parallel.pp, config.parallel.ep) == (4, 8)
    per_rank = (
        config.train.batch_size * config.train.gradient_accumulation_steps
    )
    assert per_rank * config.parallel.num_data_ranks == 4096
    assert config.data.seq_length == 4096
    assert config.data.prefix == "data/c4_en"
    optimizer = config.optimizer
    assert (optimizer.beta1, optimizer.beta2) == (0.9, 0.95)
    assert (optimizer.epsilon, optimizer.weight_decay) == (1e-15, 0.1)
    assert config.schedule.kind == "wsd"
    assert config.schedule.decay_fraction == pytest.approx(0.1)


def test_model_is_the_preset():
    mine = DecoderConfig(**as_run_config(RECIPES / "adagc.yaml").model)
    theirs = preset("ernie-10b-a1.4b")
    differing = {
        name
        for name in DecoderConfig.field_names()
        if getattr(mine, name) != getattr(theirs, name)
    }
    # PaddleFormers' pipeline model sets sqrt(0.3333 / hidden_size) itself.
    assert differing <= {"initializer_range", "float8_linears"}
    assert mine.initializer_range == pytest.approx((0.3333 / 2560) ** 0.5, 1e-3)


def test_long_run_by_one_key():
    config = as_run_config(RECIPES / "adagc.yaml", ["max_steps=60000"])
    assert config.train.max_steps == 60000
    assert config.schedule.decay_fraction == pytest.approx(0.1)


def test_steady_steps_can_be_given():
    config = as_run_config(RECIPES / "adagc.yaml", ["lr_scheduler=wsd:15750"])
    assert config.schedule.decay_fraction == 0.25


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("lr_scheduler=cosine", "lr_scheduler must be one of wsd"),
        ("lr_scheduler=wsd:21000", "leaves no step"),
        ("decay_function=half_life", "decay_function must be one of 1-sqrt"),
        ("input_dir=0.5 a 0.5 b", "not one weight and one prefix"),
        ("compute_type=nf4", "compute_type must be one of"),
        ("ernie_model_config.moe_layer_start_index=1", "every layer"),
        ("clip.name=adagcc", "did you mean 'adagc'"),
        ("stage=SFT", "stage='SFT', not 'ernie_pretrain'"),
        ("max_steps", "not of form key=value"),
        ("lr_scheduler=wsd:abc", "lr_scheduler='wsd:abc'"),
        ("learning_rate=0", "learning_rate must be positive"),
        ("split=1", "split=1: give shares"),
    ],
)
@pytest.mark.filterwarnings("ignore:the recipe has no key")
def test_what_cannot_be_expressed_is_refused(override, complaint):
    overrides = [override, "ernie_model_config.use_fp8_mlp=false"]
    with pytest.raises(ValueError, match=complaint):
        make_clip(**as_run_config(RECIPES / "adagc.yaml", overrides).clip)


def test_a_recipe_that_lacks_a_key_is_named(tmp_path):
    values = load_recipe(RECIPES / "adagc.yaml")
    del values["adam_beta1"]
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"recipe\.yaml has no 'adam_beta1'"):
        as_run_config(path)


@pytest.mark.parametrize(
    "override",
    [
        "virtual_pipeline_model_parallel_size=2",
        "ernie_model_config.use_recompute=true",
        "sharding=stage2",
        "hybrid_parallel_topo_order=pp_first",
    ],
)
def test_what_the_plan_does_not_know_is_warned_of(override):
    key = override.partition("=")[0].rpartition(".")[2]
    with pytest.warns(UserWarning, match=f"{key}=.*: the plan is that of"):
        as_run_config(RECIPES / "adagc.yaml", [override])


def test_a_key_that_the_recipe_lacks_is_named():
    recipe = RECIPES / "adagc.yaml"
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        load_recipe(recipe, ["max_stepss=60000"])
    with pytest.warns(UserWarning, match="no key 'save_hf_total_limit'"):
        values = load_recipe(recipe, ["save_hf_total_limit=1"])
    assert values["save_hf_total_limit"] == 1


def test_is_recipe():
    assert is_recipe(RECIPES / "adagc.yaml")
    assert not is_recipe(ROOT / "configs" / "proxy" / "ernie_moe.yaml")
    assert not is_recipe(RECIPES / "nothing.yaml")


def test_a_file_for_another_task_of_paddleformers_is_told_what_to_use(
    tmp_path,
):
    path = tmp_path / "sft.yaml"
    path.write_text("stage: SFT\nlearning_rate: 1.0e-5\n")
    with pytest.raises(ValueError, match=r"task 'SFT'.*ClippingMixin"):
        is_recipe(path)


def test_without_paddleformers_the_recipe_can_still_be_checked(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "paddleformers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"install .*adagc\.yaml --check"):
        run_recipe(RECIPES / "adagc.yaml", [f"output_dir={tmp_path}"])


def test_missing_model_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_recipe(RECIPES / "adagc.yaml", [f"model_name_or_path={tmp_path}"])


def test_experts_are_numbered_over_all_ranks():
    name = "ernie.layers.3.mlp.experts.5.down_proj.weight"
    moved = "ernie.layers.3.mlp.experts.17.down_proj.weight"
    assert global_expert_name(name, 12) == moved
    for other in (
        "ernie.layers.3.mlp.shared_experts.down_proj.weight",
        "ernie.layers.3.self_attn.o_proj.weight",
    ):
        assert global_expert_name(other, 12) == other


def test_what_paddleformers_is_given():
    recipe = load_recipe(RECIPES / "adagc.yaml")
    settings = formers_settings(recipe, ClipGradByAdaGC())
    assert settings["max_grad_norm"] == 0.0
    assert settings.keys() - recipe.keys() == {"max_grad_norm"}
    assert recipe.keys() - settings.keys() == {"clip"}
    clip = paddle.nn.ClipGradByGlobalNorm(0.5)
    assert formers_settings(recipe, clip)["max_grad_norm"] == 0.5


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
    override = f"output_dir={tmp_path}/file/run"
    assert main([str(RECIPES / "adagc.yaml"), override]) == 2
    assert f"{tmp_path}/file is a file: name" in capsys.readouterr().err
    assert main(["nothing.yaml"]) == 2
    assert "there is no config file nothing.yaml" in capsys.readouterr().err
    assert main([str(RECIPES / "adagc.yaml"), "clip.lambda=1"]) == 2
    assert "takes no 'lambda'" in capsys.readouterr().err


def test_recipes_import_no_trainer():
    code = (
        "import sys, paddle_adagc.lab.paddleformers.recipe; "
        "print([m for m in ('paddleformers', 'paddlenlp') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
