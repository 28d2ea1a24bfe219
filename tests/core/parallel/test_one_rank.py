# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What one rank of several does with its part of the model."""

import types

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.simulated import READ_TOPOLOGY, along
from helpers import clip_arrays, make_parameters
from paddle.distributed.auto_parallel.api import dtensor_from_local
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.agc import ClipGradByAGC
from paddle_adagc.parallel import reduce
from paddle_adagc.parallel.agreement import refuse_unknown_owners
from paddle_adagc.parallel.topology import Topology

COPIES = along("data")[0]
PARTS = along("model")[0]


@pytest.mark.parametrize(
    ("topology", "num_ranks", "mark", "is_bound", "message"),
    [
        (PARTS, 2, {}, False, r"clip\.bind\(model\)"),
        (COPIES, 2, {"no_sync": True}, False, r"clip\.bind\(model\)"),
        (
            COPIES,
            2,
            {"color": {"color": "moe_expert"}},
            False,
            r"clip\.bind\(model\)",
        ),
        (None, 2, {"expert": True}, False, r"clip\.bind\(model\)"),
        (
            None,
            2,
            {"expert": True},
            True,
            r"1 expert tensors \(weight, .* 2 ranks.*fleet\.init",
        ),
        (COPIES, 2, {}, False, None),
        (COPIES, 2, {"expert": True}, True, None),
        (None, 2, {}, False, None),
        (None, 2, {}, True, None),
        (None, 1, {"expert": True}, True, None),
        (Topology(), 1, {"expert": True}, False, None),
    ],
)
def test_experts_on_ranks_without_fleet_are_refused(
    monkeypatch, topology, num_ranks, mark, is_bound, message
):
    monkeypatch.setattr(READ_TOPOLOGY, lambda: topology)
    monkeypatch.setattr(dist, "get_world_size", lambda: num_ranks)
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: None)
    model = paddle.nn.Linear(1, 1)
    for name, value in mark.items():
        setattr(model.weight, name, value)
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(model)
    gradients = [paddle.full(p.shape, 50.0) for p in model.parameters()]
    pairs = [*zip(model.parameters(), gradients, strict=True)]
    if message is None:
        clip(pairs)
        return
    with pytest.raises(RuntimeError, match=message):
        clip(pairs)
    assert [gradient.item() for gradient in gradients] == [50.0, 50.0]


def test_hybrid_parallel_run_without_bind_or_gradient_is_refused(monkeypatch):
    monkeypatch.setattr(READ_TOPOLOGY, lambda: PARTS)
    with pytest.raises(RuntimeError, match=r"clip\.bind\(model\)"):
        clip_arrays(ClipGradByAdaGC(), make_parameters([[1]]), [None])


def test_bind_refuses_a_layout_without_a_right_norm(monkeypatch):
    model = paddle.nn.Linear(2, 2)
    sliced = along("sharding", splits_parameters=True)
    monkeypatch.setattr(READ_TOPOLOGY, lambda: sliced[0])
    with pytest.raises(ValueError, match="cuts through units"):
        ClipGradByAGC().bind(model)
    ClipGradByAdaGC().bind(model)
    model.weight.no_sync = True
    with pytest.raises(ValueError, match="without expert groups"):
        ClipGradByAdaGC().bind(model)


@pytest.mark.parametrize(
    ("topology", "is_refused"),
    [(None, True), (Topology(), True), (along("sharding")[0], False)],
)
def test_step_of_sharding_stage_2_needs_a_known_group(topology, is_refused):
    refuse = lambda _: refuse_unknown_owners("C", topology)  # noqa: E731
    optimizer = types.SimpleNamespace(_step=lambda: refuse(None))
    refuse(None)  # outside of such a step
    step = stage_2.GroupShardedOptimizerStage2.step
    if not is_refused:
        step(optimizer)
        return
    with pytest.raises(RuntimeError, match="group_sharded_parallel returned"):
        step(optimizer)


def test_tensors_in_one_buffer_are_clipped_each_by_its_own_norm(monkeypatch):
    monkeypatch.setattr(READ_TOPOLOGY, lambda: Topology(fuses_parameters=True))
    model = paddle.nn.Linear(2, 3)
    (buffer,) = make_parameters([[9]])
    for parameter, start, end in ((model.weight, 0, 6), (model.bias, 6, 9)):
        buffer._slice(start, end)._share_buffer_to(parameter)
    clip = ClipGradByAdaGC(init="constant", init_value=1.0)
    clip.bind(model)
    (clipped,) = clip_arrays(clip, [buffer], [np.r_[np.ones(6), 3, 0, 4]])
    expected = np.r_[np.full(6, 6**-0.5), 0.6, 0, 0.8]
    np.testing.assert_allclose(clipped, 1.04 * expected, rtol=1e-6)
    assert [*clip.metrics()["tensors"]] == ["weight", "bias"]


@pytest.fixture
def mesh(monkeypatch):
    """A mesh of two ranks whose parts are alike; this is the first."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(reduce, "_all_reduce", lambda part, group: 2 * part)
    return dist.ProcessMesh([0, 1], dim_names=["dp"])


def test_part_on_a_mesh_is_clipped_by_the_norm_of_the_whole(mesh):
    (parameter,) = make_parameters([[4]])
    part = dtensor_from_local(paddle.full([2], 3.0), mesh, [dist.Shard(0)])
    clip = ClipGradByAdaGC()
    clip([(parameter, part)])
    assert part._local_value().tolist() == [0.5, 0.5]
    assert clip.metrics()["global_grad_norm"] == 6.0
    with pytest.raises(ValueError, match="needs whole tensors"):
        ClipGradByAGC()([(parameter, part)])


def test_experts_on_a_mesh_need_no_bind(mesh):
    dense, expert = make_parameters([[4], [4]])
    part = dtensor_from_local(paddle.full([2], 3.0), mesh, [dist.Shard(0)])
    placed = dist.shard_tensor(expert, mesh, [dist.Replicate()])
    placed.no_sync = True
    clip = ClipGradByAdaGC()
    clip([(dense, paddle.full([4], 4.0)), (placed, part)])
    assert clip.metrics()["global_grad_norm"] == 10.0


def test_slice_of_auto_parallel_s_buffer_is_clipped_by_the_norm_of_the_whole(
    mesh,
):
    model = paddle.nn.Linear(2, 2, bias_attr=False)
    model.weight = dist.shard_tensor(model.weight, mesh, [dist.Replicate()])
    clip = ClipGradByAdaGC()
    clip.bind(model)
    clip.sharding_group = types.SimpleNamespace(ranks=[0, 1])
    clipped = clip_arrays(clip, [model.weight], [np.full(2, 3.0)])
    assert clipped[0].tolist() == [0.5, 0.5]


def test_slices_of_auto_parallel_s_buffers_need_bind(monkeypatch):
    monkeypatch.setattr("paddle_adagc.clips.base.fuses_tensors", lambda: True)
    clip = ClipGradByAdaGC()
    with pytest.raises(RuntimeError, match=r"clip\.bind\(model\)"):
        clip.should_comm_on_shard_dim = True
    clip.bind(paddle.nn.Linear(1, 1))
    clip.should_comm_on_shard_dim = True
    assert not clip.should_comm_on_shard_dim
    clip.sharding_group = types.SimpleNamespace(ranks=[0, 1])
    assert clip.should_comm_on_shard_dim


def test_buffers_of_fsdp_are_refused():
    with pytest.raises(RuntimeError, match="FSDP"):
        ClipGradByAdaGC().should_comm_on_shard_dim = True
    ClipGradByAdaGC().should_comm_on_shard_dim = False
