# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""At full size the clip follows the tensors that the paper counts."""

import copy
import types

import pytest

pytest.importorskip("paddleformers")

import paddle
from adagc_lab.paddleformers.recipe import load_recipe
from lab.paddleformers.runs import RECIPES, import_workflow

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
