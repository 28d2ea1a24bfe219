# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet's tensor-parallel and sequence-parallel layers on CPU."""

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet

_IGNORE = -100
_CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _arrays():
    """Whole weights and inputs, the same on every rank and in one process."""
    draw = np.random.default_rng(7).standard_normal
    return {
        "x": draw((6, 2, 8)).astype("float32"),
        "w": draw((8, 10)).astype("float32"),
        "b": draw(10).astype("float32"),
        "v": draw((10, 8)).astype("float32"),
        "c": draw(8).astype("float32"),
        "table": draw((12, 8)).astype("float32"),
        "up": draw((6, 2, 10)).astype("float32"),
        "down": draw((6, 2, 8)).astype("float32"),
    }


_TOKENS = np.array([[0, 5, 6], [11, 6, 3]])
_LABELS = np.array([[0, 4, _IGNORE], [9, 5, 7]])


def _tensor(array, trainable=True):
    return paddle.to_tensor(array, stop_gradient=not trainable)


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


def _tensor_parallel_layers():
    from paddle.distributed.fleet import meta_parallel as mp

    rank = start_fleet(mp=2).get_model_parallel_rank()
    a, out = _arrays(), {}

    for gather in (True, False):
        layer = mp.ColumnParallelLinear(
            8, 10, has_bias=True, gather_output=gather
        )
        _fill(layer, _columns(a["w"], rank), _columns(a["b"], rank))
        x = _tensor(a["x"])
        y = layer(x)
        _backward(y, a["up"] if gather else _columns(a["up"], rank))
        name = f"column, gather {gather}"
        out[name] = (y, x.grad, layer.weight.grad, layer.bias.grad)

    for parallel in (True, False):
        layer = mp.RowParallelLinear(
            10, 8, has_bias=True, input_is_parallel=parallel
        )
        _fill(layer, _rows(a["v"], rank), a["c"])
        x = _tensor(_columns(a["up"], rank) if parallel else a["up"])
        y = layer(x)
        _backward(y, a["down"])
        name = f"row, parallel input {parallel}"
        out[name] = (y, x.grad, layer.weight.grad, layer.bias.grad)

    layer = _fill(mp.VocabParallelEmbedding(12, 8), _rows(a["table"], rank))
    y = layer(_tensor(_TOKENS))
    _backward(y, a["x"][:2, 0][:, None] + a["x"][:2, :1].repeat(3, 1))
    out["embedding"] = (y, layer.weight.grad)

    logits = _tensor(_columns(a["up"][:2, 0, None].repeat(3, 1), rank))
    labels = _tensor(_LABELS[..., None], False)
    loss = mp.ParallelCrossEntropy(ignore_index=_IGNORE)(logits, labels)
    _backward(loss, np.arange(6.0, dtype="float32").reshape(2, 3, 1))
    out["cross entropy"] = (loss, logits.grad)
    half = logits.detach().cast("bfloat16")
    out["cross entropy in bfloat16"] = (
        mp.ParallelCrossEntropy(ignore_index=_IGNORE)(half, labels).cast(
            "float32"
        ),
    )
    return {k: [t.numpy() for t in v] for k, v in out.items()}


def _sequence_parallel_layers():
    from paddle.distributed.fleet.utils import sequence_parallel_utils as sp

    rank = start_fleet(mp=2).get_model_parallel_rank()
    a, out = _arrays(), {}
    for name, op, split_before, split_after in (
        ("scatter", sp.ScatterOp, False, True),
        ("gather", sp.GatherOp, True, False),
        ("all_gather", sp.AllGatherOp, True, False),
        ("reduce_scatter", sp.ReduceScatterOp, False, True),
    ):
        x = _tensor(_rows(a["x"], rank) if split_before else a["x"])
        y = op.apply(x)
        upstream = _rows(a["down"], rank) if split_after else a["down"]
        _backward(y, upstream * (rank + 1))
        out[name] = (y, x.grad)

    column = sp.ColumnSequenceParallelLinear(
        8, 10, has_bias=True, gather_output=False
    )
    row = sp.RowSequenceParallelLinear(
        10, 8, has_bias=True, input_is_parallel=True
    )
    _fill(column, _columns(a["w"], rank), _columns(a["b"], rank))
    _fill(row, _rows(a["v"], rank), a["c"])
    model = paddle.nn.Sequential(column, row)
    sp.register_sequence_parallel_allreduce_hooks(model, 1, False)
    x = _tensor(_rows(a["x"], rank))
    y = row(F.gelu(column(x)))
    _backward(y, _rows(a["down"], rank))
    out["block"] = (
        y,
        x.grad,
        column.weight.grad,
        column.bias.grad,
        row.weight.grad,
        row.bias.grad,
    )
    return {k: [t.numpy() for t in v] for k, v in out.items()}


def _broadcast_inputs():
    """Tensor parallelism trains on the first rank's batch."""
    from paddle.distributed import fleet

    rank = start_fleet(mp=2).get_model_parallel_rank()
    model = fleet.distributed_model(paddle.nn.Linear(2, 1))
    x = paddle.full([3, 2], float(rank + 1))
    model(x)
    return x.numpy(), model._layers.weight.numpy()


def _linear(x, w, b, upstream):
    x, w, b = _tensor(x), _tensor(w), _tensor(b)
    y = F.linear(x, w, b)
    _backward(y, upstream)
    return [t.numpy() for t in (y, x.grad, w.grad, b.grad)]


def _assert_close(got, expected, name):
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, err_msg=name, **_CLOSE)


@pytest.fixture(scope="module")
def tensor_parallel():
    return run_on_ranks(_tensor_parallel_layers, 2)


@pytest.fixture(scope="module")
def sequence_parallel():
    return run_on_ranks(_sequence_parallel_layers, 2)


@pytest.mark.parametrize("gather", [True, False])
def test_column_parallel_linear(tensor_parallel, gather):
    a = _arrays()
    y, dx, dw, db = _linear(a["x"], a["w"], a["b"], a["up"])
    for rank, got in enumerate(tensor_parallel):
        expected = (
            y if gather else _columns(y, rank),
            dx,
            _columns(dw, rank),
            _columns(db, rank),
        )
        name = f"column, gather {gather}"
        _assert_close(got[name], expected, name)


@pytest.mark.parametrize("parallel", [True, False])
def test_row_parallel_linear(tensor_parallel, parallel):
    a = _arrays()
    y, dx, dw, db = _linear(a["up"], a["v"], a["c"], a["down"])
    for rank, got in enumerate(tensor_parallel):
        expected = (
            y,
            _columns(dx, rank) if parallel else dx,
            _rows(dw, rank),
            db,
        )
        name = f"row, parallel input {parallel}"
        _assert_close(got[name], expected, name)


def test_vocab_parallel_embedding(tensor_parallel):
    a = _arrays()
    table = _tensor(a["table"])
    y = F.embedding(_tensor(_TOKENS), table)
    _backward(y, a["x"][:2, 0][:, None] + a["x"][:2, :1].repeat(3, 1))
    for rank, got in enumerate(tensor_parallel):
        expected = (y.numpy(), _rows(table.grad.numpy(), rank))
        _assert_close(got["embedding"], expected, "embedding")


def test_parallel_cross_entropy(tensor_parallel):
    logits = _tensor(_arrays()["up"][:2, 0, None].repeat(3, 1))
    loss = F.cross_entropy(
        logits,
        _tensor(_LABELS[..., None], False),
        reduction="none",
        ignore_index=_IGNORE,
    )
    _backward(loss, np.arange(6.0, dtype="float32").reshape(2, 3, 1))
    assert loss.numpy()[0, 2] == 0
    for rank, got in enumerate(tensor_parallel):
        expected = (loss.numpy(), _columns(logits.grad.numpy(), rank))
        _assert_close(got["cross entropy"], expected, "cross entropy")
        assert not got["cross entropy"][1][0, 2].any()
        np.testing.assert_allclose(
            got["cross entropy in bfloat16"][0], loss.numpy(), atol=0.02
        )


def test_sequence_parallel_operators(sequence_parallel):
    a = _arrays()
    x, down = a["x"], a["down"]
    for rank, got in enumerate(sequence_parallel):
        scaled = np.concatenate([_rows(down, 0), 2 * _rows(down, 1)])
        expected = {
            "scatter": (_rows(x, rank), scaled),
            "gather": (x, (rank + 1) * _rows(down, rank)),
            "all_gather": (x, 3 * _rows(down, rank)),
            "reduce_scatter": (2 * _rows(x, rank), scaled),
        }
        for name, arrays in expected.items():
            _assert_close(got[name], arrays, name)


def test_sequence_parallel_linears(sequence_parallel):
    a = _arrays()
    x, w, b, v, c = (_tensor(a[k]) for k in "xwbvc")
    y = F.linear(F.gelu(F.linear(x, w, b)), v, c)
    _backward(y, a["down"])
    for rank, got in enumerate(sequence_parallel):
        expected = (
            _rows(y.numpy(), rank),
            _rows(x.grad.numpy(), rank),
            _columns(w.grad.numpy(), rank),
            _columns(b.grad.numpy(), rank),
            _rows(v.grad.numpy(), rank),
            c.grad.numpy(),
        )
        _assert_close(got["block"], expected, "block")


def test_tensor_parallel_ranks_get_the_first_ranks_inputs():
    (x0, w0), (x1, w1) = run_on_ranks(_broadcast_inputs, 2)
    assert (x0 == 1).all()
    np.testing.assert_array_equal(x0, x1)
    np.testing.assert_array_equal(w0, w1)
