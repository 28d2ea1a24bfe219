# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet's tensor-parallel layers on CPU.

``core/parallel/test_layouts.py`` trains decoders with the rest of them.
"""

import numpy as np
import paddle
import paddle.nn.functional as F
from core.parallel.layouts import Layout
from core.parallel.ranks import run_on_ranks

_IGNORE = -100
_LABELS = np.array([[[0], [4], [_IGNORE]], [[9], [5], [7]]])


def _arrays():
    """Whole weights and inputs, the same on every rank and in one process."""
    draw = np.random.default_rng(7).standard_normal
    shapes = {
        "x": (6, 2, 8),
        "w": (8, 10),
        "b": (10,),
        "v": (10, 8),
        "c": (8,),
        "up": (6, 2, 10),
        "down": (6, 2, 8),
        "logits": (2, 3, 10),
        "of_losses": (2, 3, 1),
    }
    return {k: draw(shape).astype("float32") for k, shape in shapes.items()}


def _tensor(array):
    return paddle.to_tensor(np.ascontiguousarray(array), stop_gradient=False)


def _columns(array, rank):
    return np.split(array, 2, axis=-1)[rank]


def _linear(layer, x, upstream):
    """Output, and gradients of input, weight and bias."""
    x = _tensor(x)
    y = layer(x)
    (y * _tensor(upstream)).sum().backward()
    return [t.numpy() for t in (y, x.grad, layer.weight.grad, layer.bias.grad)]


def _filled(layer, weight, bias):
    layer.weight.set_value(np.ascontiguousarray(weight))
    layer.bias.set_value(np.ascontiguousarray(bias))
    return layer


def _entropy(loss_of, logits, upstream):
    """Loss and its gradient, and the loss of logits in bfloat16."""
    logits, labels = _tensor(logits), paddle.to_tensor(_LABELS)
    loss = loss_of(logits, labels)
    (loss * _tensor(upstream)).sum().backward()
    half = loss_of(logits.detach().cast("bfloat16"), labels)
    return [t.numpy() for t in (loss, logits.grad, half.cast("float32"))]


def _cross_entropy(logits, labels):
    wide, options = logits.cast("float32"), {"ignore_index": _IGNORE}
    return F.cross_entropy(wide, labels, reduction="none", **options)


def _close(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def _layers():
    """What needs a gather or a split is what one process has."""
    from paddle.distributed import fleet
    from paddle.distributed.fleet import meta_parallel as mp

    rank = Layout(mp=2).start().get_model_parallel_rank()
    a = _arrays()
    wide = _filled(paddle.nn.Linear(8, 10), a["w"], a["b"])
    y, dx, dw, db = _linear(wide, a["x"], a["up"])
    gathers = mp.ColumnParallelLinear(8, 10, has_bias=True, gather_output=True)
    _filled(gathers, _columns(a["w"], rank), _columns(a["b"], rank))
    expected = [y, dx, _columns(dw, rank), _columns(db, rank)]
    _close(_linear(gathers, a["x"], a["up"]), expected)

    narrow = _filled(paddle.nn.Linear(10, 8), a["v"], a["c"])
    z, du, dv, dc = _linear(narrow, a["up"], a["down"])
    splits = mp.RowParallelLinear(10, 8, has_bias=True, input_is_parallel=False)
    _filled(splits, np.split(a["v"], 2)[rank], a["c"])
    expected = [z, du, np.split(dv, 2)[rank], dc]
    _close(_linear(splits, a["up"], a["down"]), expected)

    loss, dlogits, _ = _entropy(_cross_entropy, a["logits"], a["of_losses"])
    assert loss[0, 2] == 0
    *exact, half = _entropy(
        mp.ParallelCrossEntropy(ignore_index=_IGNORE),
        _columns(a["logits"], rank),
        a["of_losses"],
    )
    _close(exact, [loss, _columns(dlogits, rank)])
    np.testing.assert_allclose(half, loss, 1e-5, 0.02)

    # Tensor parallelism trains on the first rank's batch and weights.
    model = fleet.distributed_model(paddle.nn.Linear(2, 1))
    x = paddle.full([3, 2], float(rank + 1))
    model(x)
    assert (x == 1).all()
    return model._layers.weight.numpy()


def test_layers_are_those_of_one_process():
    first, second = run_on_ranks(_layers, 2)
    np.testing.assert_array_equal(first, second)
