# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units of layers that say how Muon cuts them, as PaddleFleet's do."""

import functools
import types

import numpy as np
import paddle
import pytest
from core.integrations.test_trainer import clipping
from core.parallel.layouts import Layout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import plain

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.muon_slices import muon_units
from paddle_adagc.lab.models.moe import mark_experts

OPTIONS = {"muon_qkv_update_mode": "split_head", "muon_ffn_split": True}
HIDDEN, INNER, EXPERTS = 4, 6, 3


def blocks(weight, orthogonalise, sizes, axis=-1):
    parts = paddle.split(weight, sizes, axis=axis)
    return paddle.concat([orthogonalise(part) for part in parts], axis=axis)


def ortho_gate_up(weight, orthogonalise):
    return blocks(weight, orthogonalise, 2)


def of_experts(weight, orthogonalise):
    if weight.ndim != 3:
        raise ValueError("no experts")
    return orthogonalise(weight)


def by_role(weight, orthogonalise, groups):
    cut = [group.chunk(2, -1) for group in weight.chunk(groups, -1)]
    for role in zip(*cut, strict=True):
        orthogonalise(paddle.concat(role, -1))


def ortho_ep_full_intermediate(weight, orthogonalise, gate_up=False):
    raise AssertionError("it talks to other ranks")


class Attention(paddle.nn.Layer):
    """Two groups of two q heads, one k and one v; an output by heads."""

    def __init__(self, specs=None):
        super().__init__()
        self.qkv_proj = paddle.nn.Linear(HIDDEN, 2 * 8, bias_attr=False)
        self.out = self.create_parameter([6, HIDDEN])
        self.specs = specs or {
            "qkv_proj.weight": (blocks, {"sizes": [2] * 8}),
            "out": (blocks, {"sizes": 3, "axis": -2}),
            "not_here.weight": (ortho_gate_up, {}),
        }

    def muon_slice_specs(self, options):
        is_cut = options["muon_qkv_update_mode"] == "split_head"
        return self.specs if is_cut else {}


class Experts(paddle.nn.Layer):
    def __init__(self, is_shared=False):
        super().__init__()
        self.weight1 = self.create_parameter([EXPERTS, HIDDEN, 2 * INNER])
        self.weight2 = self.create_parameter([EXPERTS, INNER, HIDDEN])
        self.is_shared = is_shared

    def muon_slice_specs(self, options):
        if self.is_shared:
            over = ortho_ep_full_intermediate
            return {
                "weight1": (over, {"gate_up": True}),
                "weight2": (over, {}),
            }
        is_cut = options["muon_ffn_split"]
        first = ortho_gate_up if is_cut else of_experts
        return {"weight1": (first, {}), "weight2": (of_experts, {})}


class Net(paddle.nn.Layer):
    def __init__(self, **arguments):
        super().__init__()
        self.attention = Attention()
        self.grouped_gemm_experts = Experts(**arguments)
        self.norm = paddle.nn.LayerNorm(HIDDEN)


NAME = "grouped_gemm_experts"
PAIRS = [f"{NAME}.{e}.{i}.weight1" for e in range(EXPERTS) for i in (0, 1)]
DOWN = [f"{NAME}.{e}.weight2" for e in range(EXPERTS)]


@pytest.mark.parametrize("is_shared", [False, True])
def test_units_are_muon_s_slices(is_shared):
    net, clip = Net(is_shared=is_shared), ClipGradByAdaGC(t_start=0)
    clip.bind(net, units=muon_units(net, OPTIONS))
    assert sorted(clip._table.keys) == sorted(
        [
            *(f"attention.qkv_proj.{i}.weight" for i in range(8)),
            *(f"attention.{i}.out" for i in range(3)),
            *(*PAIRS, *DOWN, "norm.weight", "norm.bias"),
        ]
    )
    gradient = paddle.arange(64.0).reshape([4, 16])
    clip([(net.attention.qkv_proj.weight, gradient)])
    norms = clip.metrics()["tensors"]
    for i in range(8):
        found = norms[f"attention.qkv_proj.{i}.weight"]["norm"]
        part = paddle.arange(64.0).reshape([4, 16])[:, 2 * i : 2 * i + 2]
        assert found == pytest.approx(float(part.norm()), rel=1e-6)


def test_options_decide():
    net, clip = Net(), ClipGradByAdaGC()
    other = {"muon_qkv_update_mode": "none", "muon_ffn_split": False}
    clip.bind(net, units=muon_units(net, other))
    assert sorted(clip._table.keys) == sorted(
        [
            *("attention.qkv_proj.weight", "attention.out"),
            *(f"{NAME}.{e}.weight1" for e in range(EXPERTS)),
            *(*DOWN, "norm.weight", "norm.bias"),
        ]
    )


@pytest.mark.parametrize(
    ("spec", "marks", "message"),
    [
        ((by_role, {"groups": 2}), {}, "no neighbours along an axis"),
        (
            (blocks, {"sizes": 2}),
            {"is_distributed": True, "split_axis": 1},
            "other heads on every tensor-parallel rank",
        ),
    ],
)
def test_slices_without_a_key_are_refused(spec, marks, message):
    net = Attention({"qkv_proj.weight": spec})
    for name, value in marks.items():
        setattr(net.qkv_proj.weight, name, value)
    with pytest.raises(ValueError, match=message):
        ClipGradByAdaGC().bind(net, units=muon_units(net, OPTIONS))


class Gated(paddle.nn.Layer):
    """Gate and up of a dense layer in one matrix."""

    def __init__(self, columns):
        super().__init__()
        self.up_gate_proj = paddle.nn.Linear(HIDDEN, columns, bias_attr=False)

    def muon_slice_specs(self, options):
        return {"up_gate_proj.weight": (ortho_gate_up, {})}


def clip_slices(whole, layout, shares_inner_axis=False):
    """Clip made gradients of a rank's part: state, and what is clipped."""
    topology = layout.start() if layout.world_size > 1 else None
    mp, ep, size = (layout.mp, layout.ep, layout.world_size)
    rank = paddle.distributed.get_rank() if topology else 0
    parts = functools.partial(parts_of, rank=rank, mp=mp, ep=ep)
    shapes = [part.shape for part in parts(whole[0], shares_inner_axis)]
    gated = Gated(shapes[0][-1])
    if mp > 1:
        gated.up_gate_proj.weight.is_distributed = True
        gated.up_gate_proj.weight.split_axis = 1
    experts = Experts(is_shared=shares_inner_axis and size > 1)
    experts.weight1, experts.weight2 = map(experts.create_parameter, shapes[1:])
    experts.intermediate_ep_sharded = experts.is_shared
    if ep > 1:
        mark_experts(experts)
    model = paddle.nn.Sequential(("mlp", gated), (NAME, experts))
    clip = ClipGradByAdaGC(t_start=4, lambda_abs=0.5)
    clip.bind(model, units=muon_units(model, OPTIONS))
    for gradients in whole:
        values = map(paddle.to_tensor, parts(gradients, shares_inner_axis))
        pairs = [*zip(model.parameters(), values, strict=True)]
        if layout.split_param:
            pairs[0] = slice_of(*pairs[0], rank, size)
        clip(pairs)
    return plain(clip.full_state_dict()), [g.numpy() for _, g in pairs]


def slice_of(parameter, gradient, rank, size):
    """What sharding V2 hands to a clip on a rank."""
    part = paddle.zeros([gradient.size // size])
    part.name = parameter.name
    return part, gradient.flatten().chunk(size)[rank]


def parts_of(gradients, shares_inner_axis, rank, mp, ep):
    """A rank's part of gate and up, and of the experts' two stacks."""
    dense, first, second = gradients
    dense = half_of_each(dense, rank, mp)
    if shares_inner_axis:
        return [
            dense,
            half_of_each(first, rank, ep),
            np.split(second, ep, 1)[rank],
        ]
    owned = [np.split(stack, ep)[rank % ep] for stack in (first, second)]
    return [dense, *owned]


def half_of_each(fused, rank, size):
    """A rank's columns of gate, and those of up."""
    parts = [np.split(part, size, -1) for part in np.split(fused, 2, -1)]
    return np.concatenate([part[rank % size] for part in parts], -1)


@pytest.mark.parametrize(
    ("layout", "shares_inner_axis"),
    [
        (Layout(mp=2), False),
        (Layout(sharding=2, ep=2, split_param=True), False),
        (Layout(sharding=2, ep=2, split_param=True), True),
    ],
    ids=["tp2", "ep2", "ep2, parts of all experts"],
)
def test_slices_over_ranks_are_those_of_one_process(layout, shares_inner_axis):
    rng = np.random.default_rng(0)
    shapes = ([4, 12], [4, 4, 8], [4, 4, 4])
    whole = [
        [
            rng.normal(size=s) * rng.lognormal(size=[s[0], *[1] * len(s[1:])])
            for s in shapes
        ]
        for _ in range(12)
    ]
    whole = [[g.astype("float32") for g in step] for step in whole]
    state, clipped = clip_slices(whole, Layout())
    assert len(state["gamma"]) == 2 + 4 * 3
    ranks = run_on_ranks(
        clip_slices,
        2,
        whole=whole,
        layout=layout,
        shares_inner_axis=shares_inner_axis,
    )
    for rank, (its_state, its_clipped) in enumerate(ranks):
        assert its_state["gamma"] == pytest.approx(state["gamma"], rel=1e-5)
        expected = parts_of(
            clipped, shares_inner_axis, rank, layout.mp, layout.ep
        )
        if layout.split_param:
            expected[0] = np.split(expected[0].flatten(), 2)[rank]
        for mine, theirs in zip(its_clipped, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize(("optim", "number"), [("muon", 22), ("adamw", 10)])
def test_a_trainer_with_muon_clips_its_slices(tmp_path, optim, number):
    kind = types.SimpleNamespace(value=optim)
    made = clipping(tmp_path, model=Net(), optim=kind, **OPTIONS)
    assert len(made.clip._table.keys) == number
