# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real fleet: several tensors in one parameter train as the tensors apart.

As frameworks keep them: all experts of a layer in `grouped_gemm_experts`, q, k
and v in one matrix, gate and up of an expert in one.
"""

import paddle
import pytest
from core.parallel import training
from core.parallel.experts import MoE, mark_experts
from core.parallel.layouts import CASES, Layout
from core.parallel.net import Attention
from core.parallel.sizes import SPARSE_MOE
from core.parallel.training import assert_same_run, continued, on_ranks
from helpers import slow_but
from paddle import nn

# Keys of the units are those of the tensors in parameters of their own.
UNITS = {
    r"grouped_gemm_experts\.weight1$": {
        "experts": True,
        "parts": ["gate_proj", "up_proj"],
        "key": "experts.{expert}.{part}.weight",
    },
    r"grouped_gemm_experts\.weight2$": {
        "experts": True,
        "key": "experts.{expert}.down_proj.weight",
    },
    r"qkv_proj\.weight$": {
        "parts": {"q_proj": 2, "k_proj": 1, "v_proj": 1},
        "key": "{part}.weight",
    },
}


@paddle.no_grad()
def fuse(model):
    """Move weights into fused parameters, of which their layers get slices."""
    for layer in model.sublayers():
        if isinstance(layer, MoE):
            fuse_experts(layer)
        elif isinstance(layer, Attention):
            fuse_attention(layer)


def fuse_experts(moe):
    experts = [expert for expert in moe.experts if expert is not None]
    holder = moe.grouped_gemm_experts = nn.Layer()
    pairs = [
        paddle.concat([take(e.gate_proj), take(e.up_proj)], -1) for e in experts
    ]
    holder.weight1 = parameter_of(paddle.stack(pairs))
    holder.weight2 = parameter_of(
        paddle.stack([take(e.down_proj) for e in experts])
    )
    if moe.topology.expert.size > 1:
        mark_experts(holder)
        for parameter in holder.parameters():
            parameter.is_distributed = True  # as PaddleFleet says

    def give(*_):
        for expert, first, second in zip(
            experts, holder.weight1, holder.weight2, strict=True
        ):
            gate, up = first.chunk(2, -1)
            for linear, part in (
                (expert.gate_proj, gate),
                (expert.up_proj, up),
                (expert.down_proj, second),
            ):
                linear.__dict__["weight"] = part

    moe.register_forward_pre_hook(give)


def fuse_attention(attention):
    linears = [attention.q_proj, attention.k_proj, attention.v_proj]
    holder = attention.qkv_proj = nn.Layer()
    first = linears[0].weight
    widths = [linear.weight.shape[-1] for linear in linears]
    holder.weight = parameter_of(
        paddle.concat([take(linear) for linear in linears], -1)
    )
    if getattr(first, "is_distributed", False):
        holder.weight.is_distributed = True
        holder.weight.split_axis = first.split_axis

    def give(*_):
        parts = paddle.split(holder.weight, widths, -1)
        for linear, part in zip(linears, parts, strict=True):
            linear.__dict__["weight"] = part

    attention.register_forward_pre_hook(give)


def take(linear):
    """The layer's weight, which the layer no longer holds."""
    return linear._parameters.pop("weight")


def parameter_of(value):
    return paddle.create_parameter(
        value.shape,
        "float32",
        default_initializer=nn.initializer.Assign(value.numpy()),
    )


UNFUSED = {"options": SPARSE_MOE}
FUSED = {**UNFUSED, "prepare": fuse, "units": UNITS}
ALONE = "one process"
NAMES = (ALONE, "v2 x2", "ep2", "ep2 x v2 x4", "tp2 x ep2 x v2")


def run(name, **arguments):
    """What each rank gave back."""
    arguments = {**FUSED, **arguments}
    if name == ALONE:
        return [training.train(Layout(), None, **arguments)]
    return on_ranks(CASES[name][0], [arguments])[0]


LONG = ("v2 x2", "ep2", "ep2 x v2 x4")


@pytest.mark.parametrize("name", slow_but(ALONE, NAMES, LONG))
def test_run_is_that_of_tensors_apart(name):
    ranks = run(name)
    assert_same_run(ranks, training.alone(**UNFUSED))
    assert ranks[0]["summary"]["num_tensors"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v2 x2", "ep2 x v2 x4"])
def test_states_move_between_layouts_and_from_tensors_apart(name, tmp_path):
    sources = (training.alone(**UNFUSED), run("ep2")[0])
    for i, source in enumerate(sources):
        arguments = continued(source["state"], tmp_path / str(i))
        expected = training.alone(**UNFUSED, **arguments)
        assert_same_run(run(name, **arguments), expected)
