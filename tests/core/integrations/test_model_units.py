# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units that models of the Paddle libraries name themselves."""

import functools
import types

import numpy as np
import paddle
import pytest
from core.integrations.trainers import clipping

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.model_units import ModelUnits, describe_tensors

HIDDEN, INNER, EXPERTS = 4, 6, 3
GROUPED = "grouped_gemm_experts"


def never(*args, **kwargs):
    raise AssertionError("nothing of the model cuts anything")


def cut(name):
    """A function of a model that would cut a parameter for Muon."""
    return types.FunctionType(never.__code__, globals(), name)


class Linear(paddle.nn.Layer):
    """A linear layer, and what PaddleFleet's layer says of its slices."""

    def __init__(self, columns, by_mode=None, name="qkv_proj", rows=HIDDEN):
        super().__init__()
        linear = paddle.nn.Linear(rows, columns, bias_attr=False)
        self.add_sublayer(name, linear)
        if by_mode is not None:
            self.muon_slice_specs = lambda options: {
                f"{name}.weight": spec
                for mode, spec in by_mode.items()
                if mode in (options["muon_qkv_update_mode"], "any")
            }


class Experts(paddle.nn.Layer):
    """Two stacks; ranks may share the inner axis of every expert."""

    def __init__(self, is_shared, *shapes):
        super().__init__()
        self.weight1, self.weight2 = map(self.create_parameter, shapes)
        self.intermediate_ep_sharded = is_shared

    def muon_slice_specs(self, options):
        if self.intermediate_ep_sharded:
            over = cut("ortho_ep_full_intermediate")
            return {"weight1": (over, {"gate_up": True}), "weight2": (over, {})}
        is_cut = options["muon_ffn_split"]
        first = cut("ortho_gate_up" if is_cut else "ortho_stacked")
        return {"weight1": (first, {}), "weight2": (cut("ortho_stacked"), {})}


class Mla(paddle.nn.Layer):
    """Multi-head latent attention: heads."""

    def __init__(self):
        super().__init__()
        self.q_b_proj = paddle.nn.Linear(HIDDEN, 2 * 5, bias_attr=False)

    def muon_slice_specs(self, options):
        if options["muon_qkv_update_mode"] != "split_head":
            return {}
        head = cut("ortho_per_head")
        sizes = {"heads": 2, "head_sizes": [3, 2]}
        return {"q_b_proj.weight": (head, sizes)}


def by_group(*widths, groups=2):
    arguments = {"groups": groups, "role_sizes": list(widths)}
    return {"any": (cut("ortho_qkv_interleaved"), arguments)}


CONTIGUOUS = {"heads": 4, "groups": 2, "head_dim": 2, "v_head_dim": 2}
SHAPES = [EXPERTS, HIDDEN, 2 * INNER], [EXPERTS, INNER, HIDDEN]
QKV = ("q_proj", "k_proj", "v_proj")
GATED = ("q_proj", "gate_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
OF_EXPERTS = [
    *(f"{e}.{part}.weight1" for e in range(EXPERTS) for part in GATE_UP),
    *(f"{e}.weight2" for e in range(EXPERTS)),
]


def named(kind, **attributes):
    """A layer of a class that is known by its name, with a fused map."""

    def make():
        layer = type(kind, (Linear,), {})(16)
        vars(layer).update(num_heads=4, num_key_value_heads=2, head_dim=2)
        vars(layer).update(attributes)
        return layer

    return make


def with_marks(*groups, name="qkv_proj"):
    def make():
        layer = Linear(sum(map(len, groups)), name=name)
        weight = getattr(layer, name).weight
        weight.hf_norm_groups = [paddle.to_tensor(g) for g in groups]
        return layer

    return make


def gated_delta_net():
    layer = type("GatedDeltaNet", (Linear,), {})(2 * 13, name="in_proj")
    sizes = {"qk_dim": 4, "v_dim": 6, "num_value_heads": 2, "tp_size": 1}
    vars(layer).update(sizes)
    layer.in_proj.weight = layer.create_parameter([HIDDEN, 24])
    return layer


LAYERS = {
    "GQA": (lambda: Linear(16, by_group(4, 2, 2)), QKV),
    "GQA with a gate": (lambda: Linear(24, by_group(4, 4, 2, 2)), GATED),
    "GQA by role": (
        lambda: Linear(
            16, {"split_head": (cut("ortho_qkv_contiguous"), CONTIGUOUS)}
        ),
        QKV,
    ),
    "MLA": (Mla, ("q_b_proj",)),
    "gate and up": (
        lambda: Linear(
            12, {"any": (cut("ortho_gate_up"), {})}, name="up_gate_proj"
        ),
        GATE_UP,
    ),
    "grouped experts": (lambda: Experts(False, *SHAPES), OF_EXPERTS),
    "shared experts": (lambda: Experts(True, *SHAPES), OF_EXPERTS),
    "marks": (with_marks([0, 1, 4, 5], [2, 6], [3, 7]), QKV),
    "two marks": (
        with_marks([0, 1], [2, 3], name="up_gate_proj"),
        GATE_UP,
    ),
    "GDN": (
        gated_delta_net,
        ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    ),
    "LlamaAttention": (named("LlamaAttention"), QKV),
    "Phi3Attention": (named("Phi3Attention"), QKV),
    "ErnieAttention": (named("ErnieAttention", is_gqa=True), QKV),
    "gate_up_fused_proj": (
        lambda: Linear(12, name="gate_up_fused_proj"),
        GATE_UP,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_units_of_layers(name, tmp_path):
    make, parts = LAYERS[name]
    place = GROUPED if "experts" in name else "layer"
    net = paddle.nn.Sequential((place, make()))
    made = clipping(tmp_path, model=net)
    keys = {k.removesuffix(".weight") for k in made.clip._progress.tensors.keys}
    assert keys == {f"{place}.{part}" for part in parts}
    assert describe_tensors(net).startswith(f"{len(parts)} tensors in ")


def test_norms_are_those_of_the_parts():
    """Of q, k and v of two groups of heads."""
    net = Linear(16, by_group(4, 2, 2))
    clip = ClipGradByAdaGC(t_start=0)
    clip.bind(net, units=ModelUnits(net))
    gradient = paddle.arange(64.0).reshape([4, 16])
    columns = gradient.numpy().reshape(4, 2, 8)
    clip([(net.qkv_proj.weight, gradient)])
    norms = clip.metrics()["tensors"]
    for part, where in zip(
        QKV, (slice(4), slice(4, 6), slice(6, 8)), strict=True
    ):
        expected = np.linalg.norm(columns[:, :, where])
        assert norms[f"{part}.weight"]["norm"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (
            lambda: Linear(16, {"any": (cut("ortho_new"), {"by": 2})}),
            "Muon cuts it by ortho_new",
        ),
        (
            lambda: Linear(16, by_group(4, 2, 3)),
            "Muon cuts it by ortho_qkv_interleaved",
        ),
        (with_marks([0, 2], [1, 3, 4]), "its hf_norm_groups do not follow"),
        (
            with_marks([0, 3, 4], [1, 2, 5]),
            "its hf_norm_groups do not repeat",
        ),
        (lambda: Linear(16), "its class is not known"),
        (named("LlamaAttention", head_dim=3), "its class is not known"),
    ],
)
def test_an_unknown_slice_has_one_norm_and_a_line(layer, why, tmp_path, caplog):
    made = clipping(tmp_path, model=layer())
    assert made.clip._progress.tensors.keys == ["qkv_proj.weight"]
    assert f"qkv_proj.weight has one norm: {why}" in caplog.text


def test_a_third_matrix_beside_gate_and_up_is_not_cut():
    layer = Linear(18, name="gate_up_proj")
    layer.intermediate_size = INNER
    units = ModelUnits(layer)
    assert units("gate_up_proj.weight", layer.gate_up_proj.weight) is None
    assert [*units.unknown] == ["gate_up_proj.weight"]


@pytest.mark.parametrize("has_muon", [True, False])
def test_the_map_for_muon_is_asked_first(has_muon):
    """It is the Trainer's, which has one with Muon alone."""
    net = Linear(16, by_group(2, 2, 4))
    before = {"muon_ffn_split": False}
    net.config = types.SimpleNamespace(muon_configs=before)

    def build(model, config):
        if not has_muon:
            raise ModuleNotFoundError("no paddle.optimizer.muon")
        assert config.muon_configs["muon_qkv_update_mode"] == "split_qkv"
        arguments = {"num_query_groups": 2, "split_dims": [4, 2, 2]}
        info = types.SimpleNamespace(
            split_concat_func=functools.partial(cut("_qkv_sep"), **arguments)
        )
        return {model.qkv_proj.weight.name: info}

    net.build_muon_param_info_map = build
    units = ModelUnits(net)("qkv_proj.weight", net.qkv_proj.weight)
    assert units.widths["q_proj"] == (4 if has_muon else 2)
    assert net.config.muon_configs is before


def test_interleaved_gate_and_up_have_one_norm_per_expert(tmp_path):
    net = paddle.nn.Sequential((GROUPED, Experts(False, *SHAPES)))
    made = clipping(tmp_path, model=net, using_sonic_moe=True)
    assert len(made.clip._progress.tensors.keys) == 2 * EXPERTS


def test_a_mark_and_given_units_win(tmp_path):
    marked, given = Linear(16, by_group(4, 2, 2)), Linear(16, by_group(4, 2, 2))
    marked.qkv_proj.weight.adagc_units = {"parts": ["a", "b"]}
    made = clipping(tmp_path, model=marked)
    assert made.clip._progress.tensors.keys == ["a.weight", "b.weight"]
    made = clipping(tmp_path, model=given, units={})
    assert made.clip._progress.tensors.keys == ["qkv_proj.weight"]
