# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``group_sharded_parallel`` on real ranks: Paddle's classes of stages 2 and 3.

The function itself refuses CPUs, so that the classes are made here.
"""

import dataclasses
import types
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel import test_clips, training
from core.parallel.ranks import run_on_ranks
from core.parallel.training import (
    DENSE,
    Layout,
    assert_same_run,
    on_ranks,
)
from paddle.base import core
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2,
    group_sharded_stage2,
    group_sharded_stage3,
)

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.topology import with_wrapper

SEGMENT_SIZE = 100  # smaller tensors stay whole under stage 3
STAGES = [2, 3]
# Stage 3 has no weights for a layer that uses another's.
UNTIED = {**DENSE, "tie_word_embeddings": False}


def group_sharded_on_cpu(model, optimizer, stage):
    """Do what `group_sharded_parallel` does, with the same classes."""
    place = {"group": dist.get_group(), "device": "cpu"}
    with (
        mock.patch.object(core, "is_compiled_with_cuda", return_value=True),
        mock.patch.object(paddle, "get_device", return_value="cpu:0"),
    ):
        if stage == 3:
            model = group_sharded_stage3.GroupShardedStage3(
                model, optimizer, segment_size=SEGMENT_SIZE, **place
            )
            return model, optimizer
        optimizer = group_sharded_optimizer_stage2.GroupShardedOptimizerStage2(
            model.parameters(), optimizer, **place
        )
        model = group_sharded_stage2.GroupShardedStage2(
            model, optimizer, **place
        )
        return model, optimizer


@dataclasses.dataclass(frozen=True)
class GroupSharded(Layout):
    """Two ranks in the wrapper of a stage."""

    dp: int = 2
    stage: int = 2
    is_fleet = False
    binds_wrapper = True

    def start(self):
        """Start nothing: the wrapper makes its group."""

    def wrap(self, model, optimizer):
        return group_sharded_on_cpu(model, optimizer, self.stage)

    def rows(self, arrays, topology):
        return [
            paddle.to_tensor(np.split(array, self.dp, axis=1)[dist.get_rank()])
            for array in arrays
        ]

    def backward(self, model, bare, optimizer, ids, labels):
        losses = [model(*rows)[0] for rows in zip(ids, labels, strict=True)]
        loss = sum(losses) / len(losses)
        loss.backward()
        return float(loss)

    def make_outlier(self, seen, parameter, factor):
        seen.outlier = parameter.name, factor


def assert_same(ranks, expected):
    """But for gradients, which only their owners have."""
    assert_same_run(ranks, {**expected, "clipped": {}})


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_run_is_that_of_one_process(stage):
    (ranks,) = on_ranks(GroupSharded(stage=stage), [{"options": UNTIED}])
    assert_same(ranks, training.alone(options=UNTIED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "names"),
    [
        (2, test_clips.NAMES),
        pytest.param(3, test_clips.WITH_SLICES, marks=pytest.mark.long),
    ],
)
def test_compared_clips(stage, names):
    runs = [
        test_clips.arguments(name, UNTIED)
        for name in names
        if name not in ("adagc", "value")
    ]
    results = on_ranks(GroupSharded(stage=stage), runs)
    for arguments, ranks in zip(runs, results, strict=True):
        assert_same(ranks, training.alone(**arguments))


def refused(stage):
    """Message of a step of a clip that is not told of the wrapper."""
    model = paddle.nn.Linear(20, 20)
    clip = ClipGradByAdaGC()
    clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=clip
    )
    model, optimizer = group_sharded_on_cpu(model, optimizer, stage)
    model(paddle.ones([1, 20])).sum().backward()
    with pytest.raises((RuntimeError, ValueError)) as error:
        optimizer.step()
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_clip_that_does_not_know_the_wrapper_is_refused(stage):
    for message in run_on_ranks(refused, 2, stage=stage):
        assert f"sharding stage {stage}" in message
        assert "the model that group_sharded_parallel returned" in message


def test_offload_is_refused():
    wrapper = types.SimpleNamespace(_offload=True)
    with pytest.raises(ValueError, match="leave offload out"):
        with_wrapper(None, wrapper)
