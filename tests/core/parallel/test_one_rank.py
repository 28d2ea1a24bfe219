# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What one rank of several does with its part of the model."""

import types

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.simulated import along
from helpers import clip_arrays, make_parameters
from paddle.distributed.auto_parallel.api import dtensor_from_local
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2 as stage_2,
)

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.agc import ClipGradByAGC
from paddle_adagc.parallel.auto import MeshReducer
from paddle_adagc.parallel.topology import Topology


def use_topology(monkeypatch, topology):
    monkeypatch.setattr(
        "paddle_adagc.parallel.other_ranks.read_topology", lambda: topology
    )


@pytest.mark.parametrize("gradient", [np.ones(1), None])
def test_hybrid_parallel_run_without_bind_is_refused(monkeypatch, gradient):
    use_topology(monkeypatch, along("model")[0])
    with pytest.raises(RuntimeError, match=r"clip\.bind\(model\)"):
        clip_arrays(ClipGradByAdaGC(), make_parameters([[1]]), [gradient])


def test_bind_refuses_a_layout_without_a_right_norm(monkeypatch):
    model = paddle.nn.Linear(2, 2)
    sliced = along("sharding", splits_parameters=True)
    use_topology(monkeypatch, sliced[0])
    with pytest.raises(ValueError, match="cuts through units"):
        ClipGradByAGC().bind(model)
    ClipGradByAdaGC().bind(model)
    model.weight.no_sync = True
    with pytest.raises(ValueError, match="without expert groups"):
        ClipGradByAdaGC().bind(model)


def test_step_of_sharding_stage_2_without_its_wrapper_is_refused():
    model = paddle.nn.Linear(1, 1)
    clip = ClipGradByAdaGC()
    clip.bind(model)
    optimizer = types.SimpleNamespace(
        _step=lambda: clip_arrays(clip, [model.bias], [np.ones(1)])
    )
    with pytest.raises(RuntimeError, match="group_sharded_parallel returned"):
        stage_2.GroupShardedOptimizerStage2.step(optimizer)


def test_tensors_in_one_buffer_are_clipped_each_by_its_own_norm(monkeypatch):
    use_topology(monkeypatch, Topology(fuses_parameters=True))
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
    monkeypatch.setattr(
        MeshReducer, "_all_reduce", lambda self, part, group: 2 * part
    )
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
