# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real fleet: fused experts, q/k/v and gate/up train as the tensors apart."""

import itertools

import numpy as np
import paddle
import pytest
from core.parallel import training
from core.parallel.fused_training import UNITS, fuse
from core.parallel.ranks import run_on_ranks
from core.parallel.training import (
    SPARSE_MOE,
    Layout,
    assert_same_run,
    continued,
    on_ranks,
)
from helpers import slow_but
from paddle.distributed import fleet

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.lab.models.moe import mark_experts
from paddle_adagc.parallel.topology import Axis, read_topology

OPTIONS = {**SPARSE_MOE, "num_key_value_heads": 2}
UNFUSED = {"options": OPTIONS}
FUSED = {**UNFUSED, "prepare": fuse, "units": UNITS}
LAYOUTS = {
    "one process": Layout(),
    "v2": Layout(sharding=2, split_param=True),
    "ep2": Layout(sharding=2, ep=2, split_param=True),
    "ep2 x v2": Layout(sharding=4, ep=2, split_param=True),
    "ep4": Layout(sharding=4, ep=4, split_param=True),
    "tp2 x ep2": Layout(mp=2, sharding=2, ep=2, split_param=True),
}


def run(name, **arguments):
    """What each rank gave back."""
    layout = LAYOUTS[name]
    if layout.world_size == 1:
        return [training.train(layout, None, **{**FUSED, **arguments})]
    return on_ranks(layout, [{**FUSED, **arguments}])[0]


def assert_same(ranks, expected):
    """But for the clipped gradients, which are those of fused parameters."""
    assert_same_run(ranks, {**expected, "clipped": {}})
    assert ranks[0]["summary"]["num_tensors"] > 100


@pytest.mark.parametrize("name", slow_but("one process", LAYOUTS))
def test_run_is_that_of_tensors_apart(name):
    assert_same(run(name), training.alone(**UNFUSED))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_states_move_between_layouts_and_from_tensors_apart(name, tmp_path):
    sources = (training.alone(**UNFUSED), run("ep2")[0])
    for i, source in enumerate(sources):
        arguments = continued(source["state"], tmp_path / str(i))
        expected = training.alone(**UNFUSED, **arguments)
        assert_same(run(name, **arguments), expected)


COLORS = (
    *("dense_weight_no_hook", "linear_fp8", "rms_linear", "memory_attn"),
    *("attn_out_project", "shared_expert"),
)


def mark_as_paddlefleet(model):
    """Fuse, and set every mark that says nothing about norms."""
    fuse(model)
    hcg = fleet.get_hybrid_communicate_group()
    colors = itertools.cycle(COLORS)
    for parameter in model.parameters():
        parameter.need_clip = "pp_non_distributed"
        color = getattr(parameter, "color", None)
        if isinstance(color, dict):  # an expert, as mtp_shared_last_layer does
            color["color"] = "moe_weight_no_hook"
            parameter.is_moe_param = True
        else:
            group = hcg.get_sharding_parallel_group()
            parameter.color = {"color": next(colors), "group": group}
        if parameter.is_distributed and hasattr(parameter, "split_axis"):
            parameter.tensor_model_parallel = True
            parameter.partition_dim = parameter.split_axis
            parameter.partition_stride = 1


@pytest.mark.parametrize("name", slow_but("ep2", ["ep2", "tp2 x ep2"]))
def test_marks_of_paddlefleet(name):
    ranks = run(name, prepare=mark_as_paddlefleet, num_steps=15)
    assert_same(ranks, training.alone(**UNFUSED, num_steps=15))


def parts_of_all_experts(whole, layout, num_steps=12):
    """Clip made gradients of experts whose inner axis the ranks share."""
    topology = layout.start() if layout.world_size > 1 else None
    rank, size = 0, 1
    if topology is not None:
        rank = topology.get_expert_parallel_rank()
        size = topology.get_expert_parallel_world_size()
    experts = Experts([value.shape for value in split(whole[0], rank, size)])
    experts.intermediate_ep_sharded = size > 1
    if size > 1:
        mark_experts(experts)
    model = paddle.nn.Sequential(("grouped_gemm_experts", experts))
    clip = ClipGradByAdaGC(t_start=4, lambda_abs=0.5)
    clip.bind(model)
    for gradients in whole[:num_steps]:
        parts = split(gradients, rank, size)
        pairs = [
            (parameter, paddle.to_tensor(part))
            for parameter, part in zip(experts.parameters(), parts, strict=True)
        ]
        clip(pairs)
    state = training.plain(clip.full_state_dict())
    return state, clip.summary(), [g.numpy() for _, g in pairs]


class Experts(paddle.nn.Layer):
    def __init__(self, shapes):
        super().__init__()
        self.weight1, self.weight2 = map(self.create_parameter, shapes)


def split(gradients, rank, size):
    """A rank's part of gate and up `[E, H, 2I]`, and of down `[E, I, H]`."""
    first, second = gradients
    gate, up = np.split(first, 2, 2)
    return [
        np.concatenate(
            [np.split(part, size, 2)[rank] for part in (gate, up)], 2
        ),
        np.split(second, size, 1)[rank],
    ]


def made_gradients(*shapes):
    """12 steps of gradients, of which every first axis has another size."""
    rng = np.random.default_rng(0)
    return [
        [
            (
                rng.normal(size=shape)
                * rng.lognormal(size=[shape[0], *[1] * len(shape[1:])])
            ).astype("float32")
            for shape in shapes
        ]
        for _ in range(12)
    ]


def test_ranks_may_share_the_inner_axis_of_every_expert():
    whole = made_gradients([3, 4, 8], [3, 4, 4])
    state, summary, clipped = parts_of_all_experts(whole, Layout())
    layout = Layout(sharding=2, ep=2, split_param=True)
    ranks = run_on_ranks(parts_of_all_experts, 2, whole=whole, layout=layout)
    assert [*state["gamma"]][4] == "grouped_gemm_experts.1.weight2"
    for rank, (its_state, its_summary, its_clipped) in enumerate(ranks):
        assert its_state["gamma"] == pytest.approx(state["gamma"], rel=1e-5)
        assert its_summary["num_tensors"] == 6
        assert its_summary["global_grad_norm"] == pytest.approx(
            summary["global_grad_norm"], rel=1e-5
        )
        for mine, theirs in zip(
            its_clipped, split(clipped, rank, 2), strict=True
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def owned_whole(whole, layout):
    """Clip made gradients as under PaddleFleet's ``MuonShardingOptimizer``.

    Stacks and matrices lie whole with an owner, and no other rank hands them to
    the clip; vectors are cut, unless they are kept whole, too. Returns gammas,
    the norm of all, and what is clipped here, by the place of the parameter.
    """
    sharding = Axis()
    if layout.world_size > 1:
        layout.start()
        strategy = fleet.fleet._user_defined_strategy
        # Paddle 3.3.1 takes no unknown attribute.
        object.__setattr__(strategy, "use_muon_sharding", True)
        sharding = read_topology().sharding
    model = paddle.nn.Layer()
    model.grouped_gemm_experts = Experts([g.shape for g in whole[0][:2]])
    model.linear = paddle.nn.Linear(*whole[0][2].shape)
    vector = model.create_parameter(whole[0][4].shape)
    model.kept_whole = paddle.nn.ParameterList([vector])
    clip = ClipGradByAdaGC(t_start=4, lambda_abs=0.5)
    clip.bind(model)
    for gradients in whole:
        mine = {}
        for i, parameter in enumerate(model.parameters()):
            values, is_cut = gradients[i], parameter is model.linear.bias
            if is_cut:
                values = np.split(values, sharding.size)[sharding.rank]
                name = parameter.name
                parameter = paddle.zeros(values.shape)
                parameter.name = name
            if is_cut or i % sharding.size == sharding.rank:
                mine[i] = (parameter, paddle.to_tensor(values))
        clip([*mine.values()])
    return (
        training.plain(clip.full_state_dict())["gamma"],
        clip.summary()["global_grad_norm"],
        {i: gradient.numpy() for i, (_, gradient) in mine.items()},
    )


def test_muon_s_sharding_keeps_matrices_whole():
    whole = made_gradients([4, 3, 8], [4, 4, 3], [6, 4], [4], [5])
    gamma, norm, clipped = owned_whole(whole, Layout())
    assert len(gamma) == 2 * 4 + 3
    ranks = run_on_ranks(owned_whole, 2, whole=whole, layout=Layout(sharding=2))
    for its_gamma, its_norm, _ in ranks:
        assert its_gamma == pytest.approx(gamma, rel=1e-5)
        assert its_norm == pytest.approx(norm, rel=1e-5)
    for i, expected in clipped.items():
        parts = [its[i] for _, _, its in ranks if i in its]
        np.testing.assert_allclose(np.concatenate(parts), expected, 1e-5)
