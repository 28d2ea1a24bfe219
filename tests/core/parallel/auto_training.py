# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training run of ``training.py`` under auto-parallel."""

import dataclasses

import numpy as np
import paddle
import paddle.distributed as dist
from core.parallel.training import (
    ADAGC,
    COMPARED_STEPS,
    NUM_STEPS,
    SEED,
    batch,
    forward_backward,
    outlier,
    plain,
)
from paddle.base import core
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.registry import make_clip
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.rank_weights import (
    initialize_weights,
    spread_over_mesh,
)

STAGES = {1: dist.ShardingStage1, 2: dist.ShardingStage2}


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
