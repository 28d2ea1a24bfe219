# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units of layers that say how Muon cuts them, as PaddleFleet's do."""

import types

import numpy as np
import paddle
import pytest
from adagc_lab.models.moe import mark_experts
from core.integrations.test_trainer import clipping
from core.parallel.layouts import Layout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import plain

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.muon_slices import muon_units

OPTIONS = {"muon_qkv_update_mode": "split_head", "muon_ffn_split": True}
WHOLE = {"muon_qkv_update_mode": "none", "muon_ffn_split": False}
HIDDEN, INNER, EXPERTS = 4, 6, 3


def blocks(weight, orthogonalise, sizes, axis=-1):
    parts = paddle.split(weight, sizes, axis=axis)
    return paddle.concat([orthogonalise(part) for part in parts], axis=axis)


def ortho_gate_up(weight, orthogonalise):
    return blocks(weight, orthogonalise, 2)


def of_experts(weight, orthogonalise):
    assert weight.ndim == 3
    return orthogonalise(weight)


def by_role(weight, orthogonalise, groups):
    cut = [group.chunk(2, -1) for group in weight.chunk(groups, -1)]
    for role in zip(*cut, strict=True):
        orthogonalise(paddle.concat(role, -1))


def ortho_ep_full_intermediate(weight, orthogonalise, gate_up=False):
    raise AssertionError("it talks to other ranks")


class Linear(paddle.nn.Layer):
    """A linear layer ``name``, and what is said of it."""

    def __init__(self, name, columns, specs):
        super().__init__()
        linear = paddle.nn.Linear(HIDDEN, columns, bias_attr=False)
        self.add_sublayer(name, linear)
        self.muon_slice_specs = lambda options: (
            specs if options["muon_qkv_update_mode"] == "split_head" else {}
        )


class Experts(paddle.nn.Layer):
    """Two stacks; ranks may share the inner axis of every expert."""

    def __init__(self, is_shared, *shapes):
        super().__init__()
        self.weight1, self.weight2 = map(self.create_parameter, shapes)
        self.intermediate_ep_sharded = is_shared

    def muon_slice_specs(self, options):
        if self.intermediate_ep_sharded:
            over = ortho_ep_full_intermediate
            return {"weight1": (over, {"gate_up": True}), "weight2": (over, {})}
        is_cut = options["muon_ffn_split"]
        first = ortho_gate_up if is_cut else of_experts
        return {"weight1": (first, {}), "weight2": (of_experts, {})}


def make_net(is_shared=False):
    """Two groups of two q heads, one k and one v; an output; experts."""
    specs = {
        "qkv_proj.weight": (blocks, {"sizes": [2] * 8}),
        "out": (blocks, {"sizes": 3, "axis": -2}),
        "not_here.weight": (ortho_gate_up, {}),
    }
    attention = Linear("qkv_proj", 2 * 8, specs)
    attention.out = attention.create_parameter([6, HIDDEN])
    shapes = [EXPERTS, HIDDEN, 2 * INNER], [EXPERTS, INNER, HIDDEN]
    return paddle.nn.Sequential(
        ("attention", attention),
        (NAME, Experts(is_shared, *shapes)),
        ("norm", paddle.nn.LayerNorm(HIDDEN)),
    )


NAME = "grouped_gemm_experts"
SLICES = [
    *(f"attention.qkv_proj.{i}.weight" for i in range(8)),
    *(f"attention.{i}.out" for i in range(3)),
    *(f"{NAME}.{e}.{i}.weight1" for e in range(EXPERTS) for i in (0, 1)),
]
MATRICES = [
    *("attention.qkv_proj.weight", "attention.out"),
    *(f"{NAME}.{e}.weight1" for e in range(EXPERTS)),
]


@pytest.mark.parametrize(
    ("options", "is_shared", "keys"),
    [
        (OPTIONS, False, SLICES),
        (OPTIONS, True, SLICES),
        (WHOLE, False, MATRICES),
    ],
)
def test_units_are_muon_s_slices(options, is_shared, keys):
    net, clip = make_net(is_shared), ClipGradByAdaGC(t_start=0)
    clip.bind(net, units=muon_units(net, options))
    uncut = [f"{NAME}.{e}.weight2" for e in range(EXPERTS)]
    uncut += ["norm.weight", "norm.bias"]
    assert sorted(clip._tensors.keys) == sorted([*keys, *uncut])
    gradient = paddle.arange(64.0).reshape([4, 16])
    slices = gradient.numpy().reshape(4, 8, 2)
    clip([(net.attention.qkv_proj.weight, gradient)])
    norms = clip.metrics()["tensors"]
    for i in range(8 if keys is SLICES else 0):
        found = norms[f"attention.qkv_proj.{i}.weight"]["norm"]
        assert found == pytest.approx(np.linalg.norm(slices[:, i]), rel=1e-6)


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
    net = Linear("qkv_proj", 2 * 8, {"qkv_proj.weight": spec})
    vars(net.qkv_proj.weight).update(marks)
    with pytest.raises(ValueError, match=message):
        ClipGradByAdaGC().bind(net, units=muon_units(net, OPTIONS))


def half_of_each(fused, size, rank):
    """A rank's columns of gate, and those of up."""
    parts = [np.split(part, size, -1) for part in np.split(fused, 2, -1)]
    return np.concatenate([part[rank % size] for part in parts], -1)


def gammas(layout, is_shared=False):
    """Clip a rank's parts of made gradients of gate and up, and of experts."""
    size, ep, rank = layout.world_size, layout.ep, 0
    if size > 1:
        layout.start()
        rank = paddle.distributed.get_rank()

    def parts(dense, first, second):
        dense = half_of_each(dense, layout.mp, rank)
        if is_shared:
            first = half_of_each(first, ep, rank)
            return [dense, first, np.split(second, ep, 1)[rank]]
        return [dense, *(np.split(x, ep)[rank % ep] for x in (first, second))]

    shapes = [4, 12], [4, 4, 8], [4, 4, 4]
    columns, *stacks = (part.shape for part in parts(*map(np.zeros, shapes)))
    specs = {"up_gate_proj.weight": (ortho_gate_up, {})}
    gated = Linear("up_gate_proj", columns[-1], specs)
    if layout.mp > 1:
        gated.up_gate_proj.weight.is_distributed = True
        gated.up_gate_proj.weight.split_axis = 1
    experts = Experts(is_shared, *stacks)
    if ep > 1:
        mark_experts(experts)
    model = paddle.nn.Sequential(("mlp", gated), (NAME, experts))
    clip = ClipGradByAdaGC(t_start=4, lambda_abs=0.5)
    clip.bind(model, units=muon_units(model, OPTIONS))
    rng = np.random.default_rng(0)
    for _ in range(12):
        whole = [
            rng.normal(size=s) * rng.lognormal(size=[s[0], *[1] * len(s[1:])])
            for s in shapes
        ]
        values = [paddle.to_tensor(x, dtype="float32") for x in parts(*whole)]
        pairs = [*zip(model.parameters(), values, strict=True)]
        if layout.split_param:  # what sharding V2 hands to a clip
            slice_of_it = values[0].flatten().chunk(size)[rank]
            part = paddle.zeros_like(slice_of_it)
            part.name = pairs[0][0].name
            pairs[0] = part, slice_of_it
        clip(pairs)
    return plain(clip.full_state_dict())["gamma"]


@pytest.mark.parametrize(
    ("layout", "is_shared"),
    [
        (Layout(mp=2), False),
        (Layout(sharding=2, ep=2, split_param=True), False),
        (Layout(sharding=2, ep=2, split_param=True), True),
    ],
    ids=["tp2", "ep2", "ep2, parts of all experts"],
)
def test_slices_over_ranks_are_those_of_one_process(layout, is_shared):
    expected = gammas(Layout())
    assert len(expected) == 2 + 4 * 3
    ranks = run_on_ranks(gammas, 2, layout=layout, is_shared=is_shared)
    for found in ranks:
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("optim", "number"), [("muon", 22), ("adamw", 10)])
def test_a_trainer_with_muon_clips_its_slices(tmp_path, optim, number):
    kind = types.SimpleNamespace(value=optim)
    made = clipping(tmp_path, model=make_net(), optim=kind, **OPTIONS)
    assert len(made.clip._tensors.keys) == number
