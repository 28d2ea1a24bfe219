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
from core.parallel.ranks import run_on_ranks
from core.parallel.training import (
    ADAGC,
    COMPARED_STEPS,
    DENSE,
    NUM_STEPS,
    SEED,
    Layout,
    assert_same_run,
    batch,
    continued,
    forward_backward,
    on_ranks,
    outlier,
    plain,
)
from helpers import long_but
from paddle.base import core
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.registry import make_clip
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.rank_weights import initialize_weights
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


def spread_over_mesh(model, mesh):
    """Replace parameters by distributed ones; ``"mp"`` splits matrices."""
    for prefix, layer in model.named_sublayers(include_self=True):
        for name, parameter in [*layer._parameters.items()]:
            if parameter is None:
                continue
            axis = split_axis(f"{prefix}.{name}")
            placements = [
                dist.Shard(axis)
                if dimension == "mp" and axis is not None
                else dist.Replicate()
                for dimension in mesh.dim_names
            ]
            placed = dist.shard_tensor(parameter, mesh, placements)
            setattr(layer, name, placed)


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """A mesh of ``dp`` x ``mp`` processes, and the sharding stage over dp."""

    dp: int = 1
    mp: int = 1
    stage: int = 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.mp

    @property
    def mesh(self) -> dist.ProcessMesh:
        """Of one dimension where the other has size 1."""
        sizes = {"dp": self.dp, "mp": self.mp}
        sizes = {name: size for name, size in sizes.items() if size > 1}
        ranks = np.arange(self.world_size).reshape(list(sizes.values()))
        return dist.ProcessMesh(ranks, dim_names=[*sizes])

    def placements(self, **by_dimension):
        """``Replicate`` on every dimension that is not named."""
        return [
            by_dimension.get(name, dist.Replicate())
            for name in self.mesh.dim_names
        ]


class CountingClip(ClipGradBase):
    """Keeps what a clip makes of gradients, and what it communicates."""

    def __init__(self, clip):
        super().__init__()
        self.clip = clip
        self.gradients = []
        self.calls = []  # per step: what is sent, and how

    def _dygraph_clip(self, params_grads):
        self.calls.append([])
        native = core.reshard, dist.all_reduce
        core.reshard, dist.all_reduce = map(self._counted, native)
        try:
            self.gradients = self.clip(params_grads)
        finally:
            core.reshard, dist.all_reduce = native
        return self.gradients

    def _counted(self, function):
        def call(tensor, *args, **options):
            self.calls[-1].append((function.__name__, list(tensor.shape)))
            return function(tensor, *args, **options)

        return call


def whole(tensor):
    """A distributed tensor as one NumPy array."""
    mesh = tensor.process_mesh
    replicate = [dist.Replicate() for _ in mesh.shape]
    return dist.reshard(tensor.detach(), mesh, replicate)._local_value().numpy()


def train_all(layout, runs):
    """Several runs of `train` on this rank, one after the other."""
    dist.auto_parallel.set_mesh(layout.mesh)
    return [train(layout, **arguments) for arguments in runs]


def train(
    layout,
    options,
    num_steps=NUM_STEPS,
    state=None,
    first_step=0,
    clip_settings=ADAGC,
    load_from=None,
    save_to=None,
):
    """Train on this rank; returns what ``training.train`` does."""
    config = DecoderConfig(**options)
    model = DecoderForCausalLM(config)
    initialize_weights(model, config, SEED)
    spread_over_mesh(model, layout.mesh)
    clip = make_clip(**clip_settings)
    clip.bind(model)
    seen = CountingClip(clip)
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), epsilon=1e-2, grad_clip=seen
    )
    stage = STAGES.get(layout.stage)
    optimizer = dist.shard_optimizer(
        optimizer, stage and stage("dp", layout.mesh)
    )
    if load_from is not None:
        load(load_from, model, optimizer)
    assert clip.num_steps == 0
    if state is not None:
        clip.set_state_dict(state)
    parameters = dict(model.named_parameters())
    rows = layout.placements(dp=dist.Shard(0))
    losses, clipped = [], {}
    for step in range(first_step, first_step + num_steps):
        ids, labels = (
            [
                dist.shard_tensor(paddle.to_tensor(micro), layout.mesh, rows)
                for micro in array
            ]
            for array in batch(step)
        )
        losses.append(forward_backward(model, model, optimizer, ids, labels))
        key, factor = outlier(step, config)
        if key is not None:
            parameters[key].grad._local_value().scale_(factor)
        optimizer.step()
        if step in COMPARED_STEPS:
            gradients = {p.name: g for p, g in seen.gradients}
            clipped[step] = {
                name: piece(gradients[p.name]) for name, p in parameters.items()
            }
        optimizer.clear_grad()
    if save_to is not None:
        save(save_to, model, optimizer)
    return {
        "losses": losses,
        "state": plain(clip.full_state_dict()),
        "summary": clip.summary(),
        "weights": {name: piece(p) for name, p in parameters.items()},
        "clipped": clipped,
        "calls": seen.calls,
    }


def piece(tensor):
    """The whole tensor in the form of ``training.pieces``."""
    array = whole(tensor)
    return [(0, None, list(array.shape), 0, array.reshape(-1))]


def save(folder, model, optimizer):
    """Write a checkpoint that any mesh can load."""
    dist.save_state_dict(model.state_dict(), f"{folder}/model")
    dist.save_state_dict(optimizer.state_dict(), f"{folder}/optimizer")


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
    ranks = run_on_ranks(
        train_all,
        layout.world_size,
        layout=layout,
        runs=[{"options": DENSE, **arguments}],
    )
    return [runs[0] for runs in ranks]


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
def test_collectives_of_tensor_parallelism():
    calls = spread("tp2")[0]["calls"]
    names = alone()["state"]["gamma"]
    num_split = sum(split_axis(name) is not None for name in names)
    for step in calls:
        vectors = [call for call in step if call == ("reshard", [num_split])]
        assert len(vectors) == 1
        assert all(name == "reshard" for name, _ in step)


@pytest.mark.slow
def test_state_of_fleet_loads_under_auto_parallel(tmp_path):
    fleet = Layout(sharding=2, split_param=True)
    ((first, _),) = on_ranks(fleet, [{"options": DENSE}])
    arguments = continued(first["state"], tmp_path)
    mine = run(MeshLayout(mp=2), **arguments)
    assert_same_run(mine, training.train_alone(DENSE, **arguments))


@pytest.mark.slow
def test_state_of_auto_parallel_loads_under_fleet(tmp_path):
    arguments = continued(spread("tp2 x stage 1")[0]["state"], tmp_path)
    (mine,) = on_ranks(Layout(mp=2), [{"options": DENSE, **arguments}])
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
