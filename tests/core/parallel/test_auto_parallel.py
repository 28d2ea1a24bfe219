# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Auto-parallel on real ranks: every mesh trains as one process."""

import dataclasses
import functools
import re

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel import training
from core.parallel.training import (
    DENSE,
    Layout,
    assert_same_run,
    continued,
    on_ranks,
)
from helpers import long_but

from paddle_adagc.state import load_state, save_state

STAGES = {1: dist.ShardingStage1, 2: dist.ShardingStage2}


SPLIT_IN_ROWS = re.compile(r"\.(embed_tokens|o_proj|down_proj)\.weight$")
SPLIT_IN_COLUMNS = re.compile(
    r"(\.[qkv]_proj|\.gate_proj|\.up_proj|lm_head)\.weight$"
)


def split_axis(key):
    """Axis that tensor parallelism splits; None: norms and routers."""
    if SPLIT_IN_ROWS.search(key):
        return 0
    return 1 if SPLIT_IN_COLUMNS.search(key) else None


@dataclasses.dataclass(frozen=True)
class MeshLayout(Layout):
    """A mesh of ``dp`` x ``mp`` processes, and the sharding stage over dp."""

    stage: int = 0
    is_fleet = False

    @property
    def mesh(self):
        """Of one dimension where the other has size 1."""
        sizes = {"dp": self.dp, "mp": self.mp}
        sizes = {name: size for name, size in sizes.items() if size > 1}
        ranks = np.arange(self.world_size).reshape(list(sizes.values()))
        return dist.ProcessMesh(ranks, dim_names=[*sizes])

    def start(self):
        """Let auto-parallel know the mesh."""
        dist.auto_parallel.set_mesh(self.mesh)

    def spread(self, model):
        """Replace parameters by distributed ones; ``"mp"`` splits matrices."""
        for prefix, layer in model.named_sublayers(include_self=True):
            for name, parameter in [*layer._parameters.items()]:
                if parameter is None:
                    continue
                axis = split_axis(f"{prefix}.{name}")
                split = {} if axis is None else {"mp": dist.Shard(axis)}
                placements = self.placements(**split)
                placed = dist.shard_tensor(parameter, self.mesh, placements)
                setattr(layer, name, placed)

    def placements(self, **by_dimension):
        """``Replicate`` on every dimension that is not named."""
        return [
            by_dimension.get(name, dist.Replicate())
            for name in self.mesh.dim_names
        ]

    def wrap(self, model, optimizer):
        stage = STAGES.get(self.stage)
        return model, dist.shard_optimizer(
            optimizer, stage and stage("dp", self.mesh)
        )

    def rows(self, arrays, topology):
        placements = self.placements(dp=dist.Shard(0))
        return [
            [
                dist.shard_tensor(paddle.to_tensor(x), self.mesh, placements)
                for x in array
            ]
            for array in arrays
        ]

    def make_outlier(self, seen, parameter, factor):
        parameter.grad._local_value().scale_(factor)

    @staticmethod
    def whole(tensor):
        """A distributed tensor as one NumPy array."""
        mesh = tensor.process_mesh
        copies = [dist.Replicate() for _ in mesh.shape]
        return (
            dist.reshard(tensor.detach(), mesh, copies)._local_value().numpy()
        )

    @staticmethod
    def save(folder, model, optimizer):
        """Write a checkpoint that any mesh can load."""
        dist.save_state_dict(model.state_dict(), f"{folder}/model")
        dist.save_state_dict(optimizer.state_dict(), f"{folder}/optimizer")

    @staticmethod
    def load(folder, model, optimizer):
        """Read what ``save`` wrote, in place."""
        states = optimizer.state_dict()  # made by a fake step
        dist.load_state_dict(states, f"{folder}/optimizer")
        optimizer.set_state_dict(states)
        weights = model.state_dict()
        dist.load_state_dict(weights, f"{folder}/model")
        model.set_state_dict(weights)


CASES = {
    "tp2": MeshLayout(mp=2),
    "dp2": MeshLayout(dp=2),
    "stage 1 x2": MeshLayout(dp=2, stage=1),
    "stage 2 x2": MeshLayout(dp=2, stage=2),
    "tp2 x dp2": MeshLayout(mp=2, dp=2),
    "tp2 x stage 1": MeshLayout(mp=2, dp=2, stage=1),
}


def run(layout, **arguments):
    """What each rank gave back."""
    return on_ranks(layout, [{"options": DENSE, **arguments}])[0]


@functools.cache
def spread(case):
    return run(CASES[case])


def alone():
    return training.alone(options=DENSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", long_but(("tp2", "stage 2 x2", "tp2 x stage 1"), CASES)
)
def test_run_is_that_of_one_process(case):
    assert_same_run(spread(case), alone())


@pytest.mark.slow
def test_collectives_of_a_step():
    # The reshards of summands are those that AdamW would make otherwise.
    calls = spread("stage 1 x2")[0]["calls"]
    num_tensors = len(alone()["state"]["gamma"])
    assert calls == [[("reshard", [num_tensors])]] * training.NUM_STEPS


@pytest.mark.slow
def test_state_of_fleet_loads_under_auto_parallel(tmp_path):
    fleet = Layout(sharding=2, split_param=True)
    first, _ = run(fleet)
    arguments = continued(first["state"], tmp_path)
    mine = run(MeshLayout(mp=2), **arguments)
    assert_same_run(mine, training.train_alone(DENSE, **arguments))


@pytest.mark.slow
def test_state_of_auto_parallel_loads_under_fleet(tmp_path):
    arguments = continued(spread("tp2 x stage 1")[0]["state"], tmp_path)
    mine = run(Layout(mp=2), **arguments)
    assert_same_run(mine, training.train_alone(DENSE, **arguments))


@pytest.mark.slow
@pytest.mark.long
def test_checkpoint_of_one_mesh_loads_on_another(tmp_path):
    half = training.NUM_STEPS // 2
    first = run(MeshLayout(mp=2), num_steps=half, save_to=str(tmp_path))
    save_state(first[0]["state"], tmp_path)
    second = run(
        MeshLayout(dp=2, stage=1),
        first_step=half,
        num_steps=training.NUM_STEPS - half,
        state=load_state(tmp_path),
        load_from=str(tmp_path),
    )
    expected = {
        **alone(),
        "losses": alone()["losses"][half:],
        "clipped": {k: v for k, v in alone()["clipped"].items() if k >= half},
    }
    assert_same_run(second, expected)
