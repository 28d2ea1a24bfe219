# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleFormers' fused q/k/v and gate/up are clipped as tensors apart."""

import copy
import types

import pytest

pytest.importorskip("paddleformers")

import numpy as np
import paddle
from adagc_lab.paddleformers.recipe import load_recipe
from helpers import slow_but
from lab.paddleformers.runs import EP2, RECIPES, Toy, import_workflow

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.arguments import bind_clip
from paddle_adagc.integrations.model_units import describe_tensors


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
    assert declared._progress.tensors.keys == clip._progress.tensors.keys
    routers, biases = (
        {key for key in clip._progress.tensors.keys if key.endswith(end)}
        for end in (".gate.weight", ".e_score_correction_bias")
    )
    assert len(routers) == len(biases) == 25
    others = {*clip._progress.tensors.keys} - routers - biases
    assert len(others) == (9 + 3 * 48) * 25 + 3 == 3828
    shapes = {t.key: t.shape for t in clip._progress.tensors.layout}
    attention, expert = (
        "ernie.layers.24.self_attn",
        "ernie.layers.24.mlp.experts.47",
    )
    assert shapes[f"{attention}.q_proj.weight"] == (2560, 2560)
    assert shapes[f"{attention}.k_proj.weight"] == (2560, 512)
    assert shapes[f"{attention}.v_proj.weight"] == (2560, 512)
    assert shapes[f"{expert}.gate_proj.weight"] == (2560, 1024)
    assert shapes[f"{expert}.up_proj.weight"] == (2560, 1024)


PARTS = {
    "qkv_proj": {"q_proj": 2, "k_proj": 1, "v_proj": 1},
    "up_gate_proj": {"gate_proj": 1, "up_proj": 1},
}


def apart(weights):
    """Weights by name, those of q, k, v, gate and up by themselves."""
    made = {}
    for name, value in weights.items():
        *head, module, leaf = name.split(".")
        shares = PARTS.get(module, {module: 1})
        ends = np.cumsum([*shares.values()]) * value.shape[-1]
        pieces = np.split(value, ends[:-1] // sum(shares.values()), -1)
        for part, piece in zip(shares, pieces, strict=True):
            made[".".join([*head, part, leaf])] = piece
    return made


LAYOUTS = {
    "ep2": (2, EP2),
    "ep2 x v2": (4, [*EP2, "sharding_parallel_size=4"]),
}
"""Four ranks also cut experts into slices."""


@pytest.mark.parametrize("layout", slow_but("ep2", LAYOUTS))
def test_a_run_is_that_of_unfused_parameters(layout, tmp_path):
    num_ranks, overrides = LAYOUTS[layout]
    overrides = [
        *overrides,
        "max_steps=8",
        "clip.t_start=3",
        "clip.lambda_rel=1.01",
        "adam_epsilon=1e-2",
    ]
    toy = Toy(tmp_path)
    # PaddleFormers' final save times out on four ranks, with its own clip, too.
    fused = toy.run("fused", num_ranks, *overrides, saves=False)
    overrides += ["ernie_model_config.fuse_attn_ffn=false", "units=null"]
    initial = [apart(rank["first"]) for rank in fused]
    unfused = toy.run(
        "unfused", num_ranks, *overrides, initial=initial, saves=False
    )
    gammas, expected = (
        {k: float(x) for k, x in run[0]["state"]["gamma"].items()}
        for run in (fused, unfused)
    )
    assert gammas == pytest.approx(expected, rel=1e-5)
    for mine, theirs in zip(fused, unfused, strict=True):
        np.testing.assert_allclose(mine["losses"], theirs["losses"], rtol=1e-5)
        last = apart(mine["last"])
        assert last.keys() == theirs["last"].keys()
        for name, value in theirs["last"].items():
            np.testing.assert_allclose(
                last[name],
                value,
                rtol=1e-5,
                atol=1e-5 * np.abs(value).max(),
                err_msg=name,
            )
        for step, norms in enumerate(theirs["norms"]):
            for key, (_, norm) in norms.items():
                found = mine["norms"][step][key][1]
                np.testing.assert_allclose(found, norm, rtol=1e-4)
