# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which weights are Muon's, and which layouts give whole tensors."""

from functools import partial

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.vision_text import CLIP, CLIPConfig
from adagc_lab.optimizers import ClippedAdamW, StableAdamW
from adagc_lab.optimizers.adam import Parts
from adagc_lab.optimizers.update_clips import AGC
from helpers import assert_equal, make_parameters

from paddle_adagc.optimizers import Lion, Muon, base, hidden_matrices
from paddle_adagc.optimizers.muon import orthogonalize
from paddle_adagc.parallel.topology import Axis, Topology

SMALL = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def left_out(model):
    """Keys of the parameters that are no hidden matrices."""
    is_matrix = hidden_matrices(model)
    return {k for k, p in model.named_parameters() if not is_matrix(p.name)}


def test_hidden_matrices_of_a_decoder():
    config = DecoderConfig(
        **SMALL,
        qk_norm=True,
        moe_num_experts=4,
        moe_top_k=2,
        moe_intermediate_size=4,
        moe_num_shared_experts=1,
    )
    others = left_out(DecoderForCausalLM(config))
    assert {key for key in others if "norm" not in key} == {
        "model.embed_tokens.weight",
        "model.layers.0.mlp.gate.weight",  # the routers
        "model.layers.1.mlp.gate.weight",
        "lm_head.weight",
    }


def test_hidden_matrices_of_clip():
    model = CLIP(CLIPConfig(vision_layers=1, text_layers=1))
    weights = ("attn.in_proj", "attn.out_proj", "mlp.c_fc", "mlp.c_proj")
    assert {k for k, _ in model.named_parameters()} - left_out(model) == {
        f"{tower}.blocks.0.{weight}.weight"
        for tower in ("visual", "textual")
        for weight in weights
    }


def test_routers_of_paddlenlp_s_models_are_no_hidden_matrices():
    transformers = pytest.importorskip("paddlenlp.transformers")
    options = {**SMALL, "num_hidden_layers": 1, "num_key_value_heads": 2}
    experts = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    mixtral = transformers.MixtralConfig(num_local_experts=2, **options)
    qwen = transformers.Qwen2MoeConfig(num_experts=2, **experts, **options)
    for model in (
        transformers.MixtralForCausalLM(mixtral),
        transformers.Qwen2MoeForCausalLM(qwen),
    ):
        shapes = {key: p.ndim for key, p in model.named_parameters()}
        left = [key for key in left_out(model) if shapes[key] == 2]
        routers = [key for key in left if key.endswith("gate.weight")]
        assert routers
        assert len(left) == len(routers) + 2  # the embedding, the head


def test_slices_and_joined_tensors_are_refused(monkeypatch):
    """At once, or in the first step if fleet starts later."""

    def shard(**place):
        topology = Topology(sharding=Axis(0, 2, object()), **place)
        monkeypatch.setattr(base, "read_topology", lambda: topology)

    weights = make_parameters([[2, 3]])
    weights[0].grad = paddle.ones([2, 3])
    rules = (Muon, StableAdamW, partial(ClippedAdamW, update_clip=AGC()))
    early = [rule(0.1, parameters=weights) for rule in rules]
    for place, match in (
        ("splits_parameters", "needs whole .*split_param to False"),
        ("fuses_parameters", "needs each .*fuse_optimizer"),
    ):
        shard(**{place: True})
        Lion(0.1, parameters=weights).step()
        for rule, optimizer in zip(rules, early, strict=True):
            with pytest.raises(ValueError, match=match):
                rule(0.1, parameters=weights)
            with pytest.raises(ValueError, match=match):
                optimizer.step()
    shard()  # V1
    early[0].step()
    weights[0].name = "slice@linear_0.w_0"
    with pytest.raises(ValueError, match=r"slice@linear_0.*stage 3.*Muon"):
        early[0].step()


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
    return Parts(weight)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("split_axis", [0, 1, -1])
def test_a_part_is_reduced_with_the_others_gathered_and_cut_out(split_axis):
    parts = parts_of(is_distributed=True, split_axis=split_axis)
    part = paddle.arange(6.0).reshape([2, 3])
    axis = split_axis % 2
    whole = [4, 3] if axis == 0 else [2, 6]

    def numbered(tensor):
        assert tensor.shape == whole
        return paddle.arange(12.0).reshape(whole)

    expected = numbered(paddle.empty(whole)).numpy()
    own = expected[2:] if axis == 0 else expected[:, 3:]
    assert_equal([parts.of_whole(numbered, part).numpy()], [own])
    assert parts.max(part).tolist() == [[5.0]]
    assert float(parts.mean(part)) == 2.5
    for over in (0, 1):
        sums = parts.sum(part, [over]).numpy()
        alone = part.numpy().sum(over, keepdims=True)
        np.testing.assert_array_equal(sums, (1 + (over == axis)) * alone)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("split_axis", [1, 2])
def test_muon_gathers_experts_that_tensor_parallelism_splits(split_axis):
    """A stack without an expert's mark."""
    (stack,) = make_parameters([[2, 3, 4]])
    stack.is_distributed, stack.split_axis = True, split_axis
    stack.adagc_units = "experts"
    gradient, before = paddle.randn([2, 3, 4]), stack.numpy()
    stack.grad = gradient.clone()
    options = {"momentum": 0.0, "weight_decay": 0.0, "scaling": "rms"}
    Muon(1.0, parameters=[stack], **options).step()
    change = before - stack.numpy()
    for expert, part in zip(change, gradient, strict=True):
        whole = paddle.concat([part, part], axis=split_axis - 1)
        whole = orthogonalize(whole, 5).numpy()
        own = whole[3:] if split_axis == 1 else whole[:, 4:]
        scale = 0.2 * max(whole.shape) ** 0.5
        np.testing.assert_allclose(expert, scale * own, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("marks", [{}, {"is_distributed": False}])
def test_a_whole_tensor_is_its_own_part(marks):
    parts = parts_of(split_axis=0, **marks)
    part = paddle.arange(6.0).reshape([2, 3])
    assert parts.of_whole(lambda whole: whole, part) is part
    assert float(parts.mean(part)) == 2.5
