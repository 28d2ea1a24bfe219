# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip has to do beside the rule, in ten lines each, to hand over.

Each function takes a clip that has made no step, and fails where
docs/upstream.md says that Paddle's ``ClipGradByAdaptiveNorm`` differs.
"""

from unittest import mock

import paddle


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
