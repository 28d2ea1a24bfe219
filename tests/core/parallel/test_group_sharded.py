# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``group_sharded_parallel`` on real ranks: Paddle's classes of stages 2 and 3.

The function itself refuses CPUs, so that the classes are made here.
"""

import types
from unittest import mock

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel import test_clips, training
from core.parallel.ranks import run_on_ranks
from core.parallel.training import DENSE, assert_same_run
from paddle.base import core
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2,
    group_sharded_stage2,
    group_sharded_stage3,
)
from paddle.nn.clip import ClipGradBase

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.registry import make_clip
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.rank_weights import initialize_weights
from paddle_adagc.parallel.topology import with_wrapper

SEGMENT_SIZE = 100  # smaller tensors stay whole under stage 3
STAGES = [2, 3]
# Stage 3 has no weights for a layer that uses another's.
UNTIED = {**DENSE, "tie_word_embeddings": False}


class OutlierClip(ClipGradBase):
    """Scales one gradient, on whichever rank has it, before another clip."""

    def __init__(self, clip):
        super().__init__()
        self.clip = clip
        self.name, self.factor = None, 1.0

    def _dygraph_clip(self, params_grads):
        for parameter, gradient in params_grads:
            if parameter.name.removeprefix("slice@") == self.name:
                gradient.scale_(self.factor)
        return self.clip(params_grads)


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


def train(stage, clip_settings=training.ADAGC, num_steps=training.NUM_STEPS):
    """The run of ``training.train``; losses, state, summary and weights."""
    config = DecoderConfig(**UNTIED)
    model = bare = DecoderForCausalLM(config)
    initialize_weights(model, config, training.SEED)
    clip = make_clip(**clip_settings)
    outliers = OutlierClip(clip)
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), epsilon=1e-2, grad_clip=outliers
    )
    names = {key: p.name for key, p in model.named_parameters()}
    model, optimizer = group_sharded_on_cpu(model, optimizer, stage)
    clip.bind(model)
    losses = []
    for step in range(num_steps):
        ids, labels = (
            np.split(array, dist.get_world_size(), axis=1)[dist.get_rank()]
            for array in training.batch(step)
        )
        loss = sum(
            model(paddle.to_tensor(i), paddle.to_tensor(label))[0]
            for i, label in zip(ids, labels, strict=True)
        ) / len(ids)
        loss.backward()
        losses.append(float(loss))
        key, outliers.factor = training.outlier(step, config)
        outliers.name = names.get(key)
        optimizer.step()
        optimizer.clear_grad()
    if stage == 3:
        model.get_all_parameters()
    return {
        "losses": losses,
        "state": training.plain(clip.full_state_dict()),
        "summary": clip.summary(),
        "clipped": {},
        "weights": {
            key: [(0, None, list(p.shape), 0, p.numpy().reshape(-1))]
            for key, p in bare.named_parameters()
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_run_is_that_of_one_process(stage):
    ranks = run_on_ranks(train, 2, stage=stage)
    assert_same_run(ranks, {**training.train_alone(UNTIED), "clipped": {}})


def train_all(stage, settings):
    """A short run of each clip."""
    return [
        train(stage, values, num_steps=test_clips.NUM_STEPS)
        for values in settings
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "names"),
    [
        (2, test_clips.NAMES),
        pytest.param(3, test_clips.WITH_SLICES, marks=pytest.mark.long),
    ],
)
def test_compared_clips(stage, names):
    settings = [
        {**test_clips.SETTINGS.get(name, {}), "name": name}
        for name in names
        if name not in ("adagc", "value")
    ]
    ranks = run_on_ranks(train_all, 2, stage=stage, settings=settings)
    for values, runs in zip(settings, zip(*ranks, strict=True), strict=True):
        expected = training.train_alone(
            UNTIED, clip_settings=values, num_steps=test_clips.NUM_STEPS
        )
        assert_same_run(runs, {**expected, "clipped": {}})


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
