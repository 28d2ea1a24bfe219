# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip has to do beside the rule, in ten lines each, to hand over.

Each function takes a clip that has made no step (its warm-up has two, or three
by their count), and fails where
docs/upstream.md says that Paddle's ``ClipGradByAdaptiveNorm`` differs.
"""

from unittest import mock

import paddle
import paddle.distributed as dist


def pair(value, dtype="float32", **options):
    """A parameter and its gradient, both of one number."""
    zero = paddle.nn.initializer.Constant(0.0)
    parameter = paddle.create_parameter([2], dtype, default_initializer=zero)
    for name, option in options.items():
        setattr(parameter, name, option)
    return parameter, paddle.full([2], value, dtype)


def keeps_exempt_pairs(clip):
    """A parameter with ``need_clip=False`` is updated like the others."""
    pairs = [pair(3.0), pair(4.0, need_clip=False)]
    found = clip(pairs)
    assert [p.name for p, _ in found] == [p.name for p, _ in pairs]
    assert found[1][1].tolist() == [4.0, 4.0]


def clips_bfloat16(clip):
    """A bfloat16 gradient is clipped, on one process."""
    [(_, gradient)] = clip([pair(3.0, "bfloat16")])
    assert gradient.dtype == paddle.bfloat16
    assert float(gradient.astype("float32").norm()) < 1.01


def reads_no_value(clip):
    """A step reads no number back to the host."""
    pairs = [pair(3.0), pair(4.0)]
    names = ("item", "numpy", "tolist", "__bool__", "__float__")
    never = mock.Mock(side_effect=AssertionError("a value was read"))
    with mock.patch.multiple(paddle.Tensor, **dict.fromkeys(names, never)):
        clip(pairs)


def bound(clip, shape, **marks):
    """A parameter that the clip knows by its model, where it can."""
    layer = paddle.nn.Layer()
    layer.weight = layer.create_parameter(shape)
    for name, mark in marks.items():
        setattr(layer.weight, name, mark)
    if hasattr(clip, "bind"):
        clip.bind(layer)
    return layer.weight


def clips_each_expert(clip):
    """Each matrix of a stack of experts has its own norm."""
    stack = bound(clip, [2, 1, 2], expert=True)
    for sizes in [(0.1, 0.1)] * 3 + [(5.0, 0.1)]:
        gradient = paddle.to_tensor(sizes).reshape([2, 1, 1]).tile([1, 1, 2])
        clip([(stack, gradient)])
    assert gradient[0].max() < 0.2
    assert abs(gradient[1] - 0.1).max() < 1e-7


def sums_no_global_norm(clip):
    """After the warm-up a rank of two (TP) sums split tensors' norms alone."""
    split = bound(clip, [2], is_distributed=True)
    for _ in range(4):
        with mock.patch.object(
            dist, "all_reduce", wraps=dist.all_reduce
        ) as made:
            clip([(split, paddle.ones([2]))])
    assert made.call_count <= 1
