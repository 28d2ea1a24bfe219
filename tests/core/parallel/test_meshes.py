# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips on distributed gradients, also on several meshes.

Paddle's CPU build cannot run a model over several meshes in one program, so
the gradients are made here instead of by a backward pass.
"""

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.layouts import MeshLayout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import ADAGC, assert_same_clip, plain
from helpers import make_parameters
from paddle.distributed.auto_parallel.api import dtensor_from_local

from paddle_adagc import ClipGradByAdaGC

NUM_STEPS = 30
ROWS, COLUMNS, COPY = dist.Shard(0), dist.Shard(1), dist.Replicate()
SUMMANDS = dist.Partial()
GRID = [[0, 1], [2, 3]]
PLACES = {
    "dense": None,
    "copies": (GRID, [COPY, COPY]),
    "tp": (GRID, [COPY, COLUMNS]),
    "stage 3": (GRID, [ROWS, COPY]),
    "tp and stage 1": (GRID, [COLUMNS, ROWS]),
    "twice": (GRID, [ROWS, ROWS]),
    "summands over dp": (GRID, [SUMMANDS, ROWS]),
    "summands": (GRID, [SUMMANDS, SUMMANDS]),
    "tp of stage 0": ([0, 1], [COLUMNS]),
    "tp of stage 1": ([2, 3], [ROWS]),
    "expert of ranks 1 and 3": ([1, 3], [COPY]),
    "expert of rank 2": ([2], [COPY]),
}
SHAPE = [8, 7]  # 7 columns do not divide evenly


def gradients(step, keys):
    """Whole gradients by key; every third step has an outlier."""
    draw = np.random.default_rng(step)
    found = {key: draw.normal(size=SHAPE).astype("float32") for key in keys}
    if step % 3 == 1:
        found[[*keys][(step * 7) % len(keys)]] *= 30
    return found


def distribute(array, place):
    """The array as a distributed tensor at ``place``; None: a dense one."""
    if place is None:
        return paddle.to_tensor(array)
    ranks, placements = place
    names = [f"dimension{i}" for i in range(np.ndim(ranks))]
    mesh = dist.ProcessMesh(ranks, dim_names=names)
    copies = [COPY if p.is_partial() else p for p in placements]
    tensor = dist.shard_tensor(array, mesh, copies)
    if copies == placements or not np.any(array):
        return tensor
    share = 1.0  # of this rank, so that the ranks' summands add up
    for axis, placement in enumerate(placements):
        if placement.is_partial():
            here = np.argwhere(np.array(ranks) == dist.get_rank())[0]
            share *= (0.25, 0.75)[here[axis]]
    return dtensor_from_local(tensor._local_value() * share, mesh, placements)


def clip_made(places):
    """Thirty steps on this rank, or on one process.

    Experts have a mark: under fleet they would need ``bind``.
    """
    parameters = {}
    with paddle.utils.unique_name.guard():
        made = make_parameters([SHAPE] * len(places))
    for parameter, (key, place) in zip(made, places.items(), strict=True):
        parameters[key] = parameter
        if place is not None:
            parameters[key] = distribute(np.zeros(SHAPE, "float32"), place)
            parameters[key].name = parameter.name
            parameters[key].no_sync = key.startswith("expert")
    clip = ClipGradByAdaGC(**ADAGC)
    clipped = []
    for step in range(NUM_STEPS):
        pairs = {
            key: (parameters[key], distribute(gradient, places[key]))
            for key, gradient in gradients(step, places).items()
        }
        clip([*pairs.values()])
        clipped.append({})
        for key, (_, gradient) in pairs.items():
            if places[key] is None:
                clipped[step][key] = gradient.numpy()
            elif dist.get_rank() in np.ravel(places[key][0]):
                clipped[step][key] = MeshLayout.whole(gradient)
    return {
        "clipped": clipped,
        "state": plain(clip.full_state_dict()),
        "summary": clip.summary(),
    }


@pytest.mark.slow
def test_the_clip_acts_as_on_one_process():
    ranks = run_on_ranks(clip_made, 4, places=PLACES)
    expected = clip_made(dict.fromkeys(PLACES))
    assert_same_clip(ranks, expected)
    for rank in ranks:
        steps = zip(rank["clipped"], expected["clipped"], strict=True)
        for step, (found, wanted) in enumerate(steps):
            for key, array in found.items():
                limit = 1e-5 * np.abs(wanted[key]).max()
                np.testing.assert_allclose(
                    array, wanted[key], 0, limit, err_msg=f"{step}, {key}"
                )


def test_buffers_that_join_tensors_are_refused():
    with pytest.raises(RuntimeError, match="FSDP"):
        ClipGradByAdaGC().should_comm_on_shard_dim = True
    ClipGradByAdaGC().should_comm_on_shard_dim = False
