# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which weights are Muon's, and which layouts give whole tensors."""

import numpy as np
import paddle
import pytest
from helpers import make_parameters

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.vision_text import CLIP, CLIPConfig
from paddle_adagc.optimizers import base
from paddle_adagc.optimizers.muon import hidden_matrices
from paddle_adagc.parallel.topology import Axis, Topology

SMALL = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def test_hidden_matrices_of_a_decoder():
    config = DecoderConfig(
        **SMALL,
        qk_norm=True,
        moe_num_experts=4,
        moe_top_k=2,
        moe_intermediate_size=4,
        moe_num_shared_experts=1,
    )
    model = DecoderForCausalLM(config)
    is_matrix = hidden_matrices(model)
    others = {k for k, p in model.named_parameters() if not is_matrix(p.name)}
    assert {key for key in others if "norm" not in key} == {
        "model.embed_tokens.weight",
        "model.layers.0.mlp.gate.weight",  # the routers
        "model.layers.1.mlp.gate.weight",
        "lm_head.weight",
    }


def test_hidden_matrices_of_clip():
    model = CLIP(CLIPConfig(vision_layers=1, text_layers=1))
    is_matrix = hidden_matrices(model)
    taken = {key for key, p in model.named_parameters() if is_matrix(p.name)}
    weights = ("attn.in_proj", "attn.out_proj", "mlp.c_fc", "mlp.c_proj")
    assert taken == {
        f"{tower}.blocks.0.{weight}.weight"
        for tower in ("visual", "textual")
        for weight in weights
    }


def test_routers_of_paddlenlp_s_models_are_no_hidden_matrices():
    transformers = pytest.importorskip("paddlenlp.transformers")
    options = {**SMALL, "num_hidden_layers": 1, "num_key_value_heads": 2}
    models = [
        transformers.MixtralForCausalLM(
            transformers.MixtralConfig(num_local_experts=2, **options)
        ),
        transformers.Qwen2MoeForCausalLM(
            transformers.Qwen2MoeConfig(
                num_experts=2,
                moe_intermediate_size=8,
                shared_expert_intermediate_size=8,
                **options,
            )
        ),
    ]
    for model in models:
        is_matrix = hidden_matrices(model)
        left = [
            key
            for key, p in model.named_parameters()
            if p.ndim == 2 and not is_matrix(p.name)
        ]
        routers = [key for key in left if key.endswith("gate.weight")]
        assert routers
        assert len(left) == len(routers) + 2  # the embedding, the head


def test_slices_and_joined_tensors_are_refused(monkeypatch):
    def check(**place):
        sharding = Axis(0, 2, object())
        topology = Topology(sharding=sharding, **place)
        monkeypatch.setattr(base, "read_topology", lambda: topology)
        base.check_whole_tensors("Muon", ["linear_0.w_0"])

    check()  # V1
    with pytest.raises(ValueError, match=r"Muon .*split_param to False"):
        check(splits_parameters=True)
    with pytest.raises(ValueError, match=r"Muon .*fuse_optimizer"):
        check(fuses_parameters=True)
    check()
    with pytest.raises(ValueError, match=r"slice@linear_0.*stage 3"):
        base.check_whole_tensors("Muon", ["slice@linear_0.w_0"])


@pytest.fixture
def two_ranks(monkeypatch):
    """The second of two tensor-parallel ranks, which hold the same values."""
    topology = Topology(model=Axis(1, 2, object()))
    monkeypatch.setattr(base, "read_topology", lambda: topology)

    def all_gather(parts, part, group=None):
        parts += [part, part] if group is topology.model.group else []

    def all_reduce(value, op, group):
        assert group is topology.model.group
        if op == base.dist.ReduceOp.SUM:
            value.scale_(2.0)

    monkeypatch.setattr(base.dist, "all_gather", all_gather)
    monkeypatch.setattr(base.dist, "all_reduce", all_reduce)


def parts_of(**marks):
    (weight,) = make_parameters([[2, 3]])
    for name, value in marks.items():
        setattr(weight, name, value)
    return base.Parts(weight)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("split_axis", [0, 1, -1])
def test_a_part_is_reduced_with_the_others_gathered_and_cut_out(split_axis):
    parts = parts_of(is_distributed=True, split_axis=split_axis)
    part = paddle.arange(6.0).reshape([2, 3])
    axis = split_axis % 2
    assert parts.gather(part).shape == ([4, 3] if axis == 0 else [2, 6])
    whole = paddle.arange(24.0).reshape([4, 6])
    own = whole[2:] if axis == 0 else whole[:, 3:]
    np.testing.assert_array_equal(parts.own(whole).numpy(), own.numpy())
    assert parts.max(part).tolist() == [[5.0]]
    assert float(parts.mean(part)) == 2.5
    for over in (0, 1):
        sums = parts.sum(part, [over]).numpy()
        alone = part.numpy().sum(over, keepdims=True)
        np.testing.assert_array_equal(sums, (1 + (over == axis)) * alone)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("marks", [{}, {"is_distributed": False}])
def test_a_whole_tensor_is_its_own_part(marks):
    parts = parts_of(split_axis=0, **marks)
    part = paddle.arange(6.0).reshape([2, 3])
    assert parts.gather(part) is parts.own(part) is part
    assert float(parts.mean(part)) == 2.5
