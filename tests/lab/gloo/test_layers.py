# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet's tensor-parallel and sequence-parallel layers on CPU.

``core/parallel/test_layouts.py`` trains decoders with them.
"""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet

_IGNORE = -100
_TOKENS = np.array([[0, 5, 6], [11, 6, 3]])
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
        "table": (12, 8),
        "up": (6, 2, 10),
        "down": (6, 2, 8),
        "logits": (2, 3, 10),
        "of_tokens": (2, 3, 8),
        "of_losses": (2, 3, 1),
    }
    return {k: draw(shape).astype("float32") for k, shape in shapes.items()}


def _tensor(array):
    return paddle.to_tensor(array, stop_gradient=False)


def _whole(array, rank):
    return array


def _columns(array, rank):
    return np.split(array, 2, axis=-1)[rank]


def _rows(array, rank):
    return np.split(array, 2, axis=0)[rank]


def _fill(layer, weight, bias=None):
    layer.weight.set_value(np.ascontiguousarray(weight))
    if bias is not None:
        layer.bias.set_value(np.ascontiguousarray(bias))
    return layer


def _backward(y, upstream):
    (y * paddle.to_tensor(np.ascontiguousarray(upstream))).sum().backward()


def _layers():
    """By layer: output, gradient of the input, gradients of the weights."""
    from paddle.distributed.fleet import meta_parallel as mp
    from paddle.distributed.fleet.utils import sequence_parallel_utils as sp

    rank = start_fleet(mp=2).get_model_parallel_rank()
    a, out = _arrays(), {}
    for name, split_x, split_up in (
        ("column", _whole, _columns),
        ("gathered", _whole, _whole),
        ("row", _columns, _whole),
        ("split", _whole, _whole),
    ):
        if name in ("column", "gathered"):
            layer = mp.ColumnParallelLinear(
                8, 10, has_bias=True, gather_output=name == "gathered"
            )
            _fill(layer, _columns(a["w"], rank), _columns(a["b"], rank))
            x, up = a["x"], a["up"]
        else:
            layer = mp.RowParallelLinear(
                10, 8, has_bias=True, input_is_parallel=name == "row"
            )
            _fill(layer, _rows(a["v"], rank), a["c"])
            x, up = a["up"], a["down"]
        x = _tensor(split_x(x, rank))
        y = layer(x)
        _backward(y, split_up(up, rank))
        out[name] = (y, x.grad, layer.weight.grad, layer.bias.grad)

    layer = _fill(mp.VocabParallelEmbedding(12, 8), _rows(a["table"], rank))
    y = layer(_tensor(_TOKENS))
    _backward(y, a["of_tokens"])
    out["embedding"] = (y, layer.weight.grad)

    logits = _tensor(_columns(a["logits"], rank))
    labels = paddle.to_tensor(_LABELS)
    entropy = mp.ParallelCrossEntropy(ignore_index=_IGNORE)
    loss = entropy(logits, labels)
    _backward(loss, a["of_losses"])
    out["cross entropy"] = (loss, logits.grad)
    half = logits.detach().cast("bfloat16")
    out["in bfloat16"] = (entropy(half, labels).cast("float32"),)

    for name, op, before, after in (
        ("scatter", sp.ScatterOp, _whole, _rows),
        ("gather", sp.GatherOp, _rows, _whole),
        ("all_gather", sp.AllGatherOp, _rows, _whole),
        ("reduce_scatter", sp.ReduceScatterOp, _whole, _rows),
    ):
        x = _tensor(before(a["x"], rank))
        y = op.apply(x)
        _backward(y, after(a["down"], rank) * (rank + 1))
        out[name] = (y, x.grad)
    return {k: [t.numpy() for t in v] for k, v in out.items()}


def _linear(x, w, b, upstream):
    tensors = [_tensor(array) for array in (x, w, b)]
    y = F.linear(*tensors)
    _backward(y, upstream)
    return [y.numpy(), *(tensor.grad.numpy() for tensor in tensors)]


def _expected():
    """By layer: the whole arrays, and which part of each a rank has."""
    a = _arrays()
    x, down = a["x"], a["down"]
    wide = _linear(x, a["w"], a["b"], a["up"])
    narrow = _linear(a["up"], a["v"], a["c"], down)
    table, logits = _tensor(a["table"]), _tensor(a["logits"])
    y = F.embedding(paddle.to_tensor(_TOKENS), table)
    _backward(y, a["of_tokens"])
    labels = paddle.to_tensor(_LABELS)
    options = {"reduction": "none", "ignore_index": _IGNORE}
    loss = F.cross_entropy(logits, labels, **options)
    _backward(loss, a["of_losses"])
    assert loss.numpy()[0, 2] == 0
    scaled = np.concatenate([_rows(down, 0), 2 * _rows(down, 1)])
    parts = {
        "column": (wide, [_columns, _whole, _columns, _columns]),
        "gathered": (wide, [_whole, _whole, _columns, _columns]),
        "row": (narrow, [_whole, _columns, _rows, _whole]),
        "split": (narrow, [_whole, _whole, _rows, _whole]),
        "embedding": ([y, table.grad], [_whole, _rows]),
        "cross entropy": ([loss, logits.grad], [_whole, _columns]),
        "in bfloat16": ([loss], [_whole]),
        "scatter": ([x, scaled], [_rows, _whole]),
        "gather": ([x, scaled], [_whole, _rows]),
        "all_gather": ([x, 3 * down], [_whole, _rows]),
        "reduce_scatter": ([2 * x, scaled], [_rows, _whole]),
    }
    return {k: [*zip(*pair, strict=True)] for k, pair in parts.items()}


def test_layers_are_those_of_one_process():
    expected = _expected()
    for rank, got in enumerate(run_on_ranks(_layers, 2)):
        assert got.keys() == expected.keys()
        for name, pairs in expected.items():
            atol = 0.02 if name == "in bfloat16" else 1e-6
            for array, (whole, part) in zip(got[name], pairs, strict=True):
                np.testing.assert_allclose(
                    array, part(np.asarray(whole), rank), 1e-5, atol, name
                )


def _broadcast_inputs():
    """Tensor parallelism trains on the first rank's batch."""
    from paddle.distributed import fleet

    rank = start_fleet(mp=2).get_model_parallel_rank()
    model = fleet.distributed_model(paddle.nn.Linear(2, 1))
    x = paddle.full([3, 2], float(rank + 1))
    model(x)
    return x.numpy(), model._layers.weight.numpy()


@pytest.mark.slow
def test_tensor_parallel_ranks_get_the_first_ranks_inputs():
    (x0, w0), (x1, w1) = run_on_ranks(_broadcast_inputs, 2)
    assert (x0 == 1).all()
    np.testing.assert_array_equal(x0, x1)
    np.testing.assert_array_equal(w0, w1)
