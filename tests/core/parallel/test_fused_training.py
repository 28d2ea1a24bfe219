# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real fleet: fused experts, q/k/v and gate/up train as the tensors apart."""

import functools
import itertools

import numpy as np
import paddle
import pytest
from core.parallel import fused_training
from core.parallel.ranks import run_on_ranks
from core.parallel.training import SPARSE_MOE, Layout
from helpers import slow_but
from paddle.distributed import fleet

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.lab.models.moe import mark_experts
from paddle_adagc.parallel.topology import Axis, read_topology

OPTIONS = {**SPARSE_MOE, "num_key_value_heads": 2}
NUM_STEPS = 120
LAYOUTS = {
    "one process": Layout(),
    "v2": Layout(sharding=2, split_param=True),
    "ep2": Layout(sharding=2, ep=2, split_param=True),
    "ep2 x v2": Layout(sharding=4, ep=2, split_param=True),
    "ep4": Layout(sharding=4, ep=4, split_param=True),
    "tp2 x ep2": Layout(mp=2, sharding=2, ep=2, split_param=True),
}


@functools.cache
def unfused():
    return fused_training.train(Layout(), OPTIONS, NUM_STEPS, is_fused=False)


@functools.cache
def fused(name):
    return run(name, num_steps=NUM_STEPS)


def run(name, **arguments):
    layout = LAYOUTS[name]
    arguments = {"layout": layout, "options": OPTIONS, **arguments}
    if layout.world_size == 1:
        return [fused_training.train(**arguments)]
    return run_on_ranks(
        fused_training.train, layout.world_size, timeout=600, **arguments
    )


def assert_same(mine, theirs, rtol=1e-5):
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_allclose(
            mine[key], value, rtol=rtol, atol=rtol * np.max(np.abs(value))
        )


@pytest.mark.parametrize("name", slow_but("one process", LAYOUTS))
def test_run_is_that_of_tensors_apart(name):
    expected = unfused()
    ranks = fused(name)
    losses = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    for rank in ranks:
        assert rank["state"] == ranks[0]["state"]
        assert rank["state"]["step"] == NUM_STEPS
        assert_same(rank["state"]["gamma"], expected["state"]["gamma"])
        assert rank["summary"]["num_tensors"] > 100
        whole = {
            key: value
            for key, value in rank["weights"].items()
            if value.shape == expected["weights"][key].shape
        }
        assert_same(whole, {key: expected["weights"][key] for key in whole})


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_states_move_between_layouts_and_from_tensors_apart(name):
    for source in (unfused(), fused("ep2 x v2")[0]):
        state = source["state"]
        arguments = {"num_steps": 3, "state": state, "first_step": NUM_STEPS}
        expected = fused_training.train(
            Layout(), OPTIONS, is_fused=False, **arguments
        )
        for rank in run(name, **arguments):
            assert_same(rank["state"]["gamma"], expected["state"]["gamma"])


COLORS = (
    *("dense_weight_no_hook", "linear_fp8", "rms_linear", "memory_attn"),
    *("attn_out_project", "shared_expert"),
)


def mark_as_paddlefleet(model):
    """Set every mark that says nothing about norms."""
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
    expected = fused_training.train(Layout(), OPTIONS, 15, is_fused=False)
    for rank in run(name, num_steps=15, mark=mark_as_paddlefleet):
        assert_same(rank["state"]["gamma"], expected["state"]["gamma"])


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
    state = fused_training.training.plain(clip.full_state_dict())
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
        assert_same(its_state["gamma"], state["gamma"])
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
    expert, owners, sharding = Axis(), Axis(), Axis()
    if layout.world_size > 1:
        layout.start()
        strategy = fleet.fleet._user_defined_strategy
        # Paddle 3.3.1 takes no unknown attribute.
        object.__setattr__(strategy, "use_muon_sharding", True)
        topology = read_topology()
        expert, sharding = topology.expert, topology.sharding
        owners = topology.moe_sharding if layout.ep > 1 else sharding
    model = paddle.nn.Layer()
    model.grouped_gemm_experts = Experts(
        [np.split(g, expert.size)[expert.rank].shape for g in whole[0][:2]]
    )
    if layout.ep > 1:
        mark_experts(model.grouped_gemm_experts)
    model.linear = paddle.nn.Linear(*whole[0][2].shape)
    vector = model.create_parameter(whole[0][4].shape)
    model.kept_whole = paddle.nn.ParameterList([vector])
    clip = ClipGradByAdaGC(t_start=4, lambda_abs=0.5)
    clip.bind(model)
    for gradients in whole:
        mine = {}
        for i, parameter in enumerate(model.parameters()):
            axis = owners if parameter.ndim == 3 else sharding
            values = gradients[i]
            if parameter.ndim == 3:
                values = np.split(values, expert.size)[expert.rank]
            is_cut = parameter.name == model.linear.bias.name
            if is_cut:
                values = np.split(values, axis.size)[axis.rank]
                name = parameter.name
                parameter = paddle.zeros(values.shape)
                parameter.name = name
            if is_cut or i % axis.size == axis.rank:
                mine[i] = (parameter, paddle.to_tensor(values))
        clip([*mine.values()])
    return (
        fused_training.training.plain(clip.full_state_dict())["gamma"],
        clip.summary()["global_grad_norm"],
        {i: gradient.numpy() for i, (_, gradient) in mine.items()},
    )


@pytest.mark.parametrize(
    "layout",
    slow_but(
        Layout(sharding=2), [Layout(sharding=2), Layout(sharding=4, ep=2)]
    ),
    ids=lambda layout: f"ep{layout.ep}",
)
def test_muon_s_sharding_keeps_matrices_whole(layout):
    whole = made_gradients([4, 3, 8], [4, 4, 3], [6, 4], [4], [5])
    gamma, norm, clipped = owned_whole(whole, Layout())
    assert len(gamma) == 2 * 4 + 3
    ranks = run_on_ranks(
        owned_whole, layout.world_size, whole=whole, layout=layout
    )
    for its_gamma, its_norm, _ in ranks:
        assert_same(its_gamma, gamma)
        assert its_norm == pytest.approx(norm, rel=1e-5)
    for i, expected in clipped.items():
        parts = [its[i] for _, _, its in ranks if i in its]
        found = np.sort(np.concatenate(parts).flatten())
        np.testing.assert_allclose(found, np.sort(expected.flatten()), 1e-5)
