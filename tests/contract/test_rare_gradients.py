# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients, and optimizers, as few runs have them."""

import os
import sys

import paddle
import paddle.distributed as dist
import pytest
from contract.test_units_on_ranks import Experts
from helpers import make_parameters, run_python

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.paddle_internals import find_caller
from paddle_adagc.parallel.units import Units


class Doubled(paddle.autograd.PyLayer):
    """`a + b`, whose two gradients are one tensor."""

    @staticmethod
    def forward(context, a, b):
        return a + b

    @staticmethod
    def backward(context, gradient):
        return gradient, gradient


@pytest.mark.parametrize("follows", [False, True])
def test_two_gradients_in_one_memory_are_refused(follows):
    """Scaled in place, each would be clipped twice."""
    parameters = make_parameters([[2, 3], [2, 3]])
    Doubled.apply(*parameters).sum().backward()
    clip = ClipGradByAdaGC()
    clip._follows = follows
    pairs = [(p, p.grad) for p in parameters]
    if follows:  # it changes none, until it acts
        clip(pairs)
        clip._follows = False
    with pytest.raises(ValueError, match=r"same memory .* clone\(\)"):
        clip(pairs)
    assert clip.num_steps == follows


class Transposed(paddle.autograd.PyLayer):
    """`a + b.t()`, whose second gradient is a view of the first."""

    @staticmethod
    def forward(context, a, b):
        return a + b.t()

    @staticmethod
    def backward(context, gradient):
        return gradient, gradient.t()


@pytest.mark.parametrize("shape", [[4, 3], [1, 5]])
def test_a_gradient_and_its_transpose_in_one_memory_are_refused(shape):
    a, b = make_parameters([shape, shape[::-1]])
    clip = ClipGradByAdaGC(t_start=0)
    optimizer = paddle.optimizer.SGD(1.0, parameters=[a, b], grad_clip=clip)
    Transposed.apply(a, b).sum().backward()
    with pytest.raises(ValueError, match="same memory"):
        optimizer.step()


def test_parameter_groups_are_known_within_shard_optimizer():
    groups = make_parameters([[2], [3]])
    found = []

    class Clip(ClipGradByAdaGC):
        def _dygraph_clip(self, pairs):
            found.append(find_caller().group)
            return super()._dygraph_clip(pairs)

    optimizer = paddle.optimizer.AdamW(
        parameters=[{"params": [p]} for p in groups], grad_clip=Clip()
    )
    optimizer = dist.shard_optimizer(optimizer)
    for _ in range(2):
        sum(p.sum() for p in groups).backward()
        optimizer.step()
        optimizer.clear_grad()
    assert found[-4:] == [0, 1, 0, 1]


def test_a_tensor_on_a_mesh_may_come_after_units():
    model = Experts(expert=True)
    model.fc = paddle.nn.Linear(4, 4, bias_attr=False)
    mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
    model.fc.weight = dist.shard_tensor(model.fc.weight, mesh, [dist.Shard(0)])
    clip = ClipGradByAdaGC()
    clip.bind(model, {"up": Units(experts=True)})
    progress = clip._progress
    (index,) = progress.ranks.meshes._spreads
    assert progress.tensors.keys[index] == "fc.weight"


WITHOUT_STRIDES = """
import numpy as np
import paddle
from contract.test_units_on_ranks import Experts
from helpers import clip_arrays
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.units import Units, view_of
assert view_of(paddle.ones([9]), 2, [2, 3]).shape == [2, 3]
model, clip = Experts(expert=True), ClipGradByAdaGC()
clip.bind(model, {"up": Units(experts=True)})
try:
    clip_arrays(clip, model.parameters(), [np.ones([3, 3]), np.ones([2, 3, 3])])
    print([*clip.state_dict()["gamma"]])
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("native", "said"),
    [("1", "1.up"), ("0", "units need FLAGS_use_stride_kernel=1")],
)
def test_units_without_the_kernels_for_strides(native, said, tmp_path):
    environment = {
        "FLAGS_use_stride_kernel": "0",
        "PADDLE_ADAGC_NATIVE": native,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = run_python(tmp_path, "-c", WITHOUT_STRIDES, **environment)
    assert said in done.stdout, done.stderr
