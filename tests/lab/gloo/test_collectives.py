# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages that the CPU backend adds to gloo."""

from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks

from paddle_adagc.lab.gloo import rendezvous

_SUM = dist.ReduceOp.SUM


def _rows(rank, num_rows=4, dtype="float32"):
    """Different numbers on every rank, whole so that sums are exact."""
    values = np.arange(num_rows * 3).reshape(num_rows, 3) + 100 * rank
    return paddle.to_tensor(values.astype("float32")).cast(dtype)


def _array(tensor):
    return tensor.cast("float32").numpy()


def _collectives():
    rank = dist.get_rank()
    x, stream = _rows(rank), dist.stream
    out = {}

    shard = paddle.zeros([2, 3])
    stream.reduce_scatter(shard, x, op=_SUM)
    out["reduce_scatter of a tensor"] = _array(shard)
    buffer = paddle.zeros([4, 3])
    stream.reduce_scatter(
        buffer._slice(2 * rank, 2 * rank + 2), x, use_calc_stream=True
    )
    out["reduce_scatter into a view"] = _array(buffer)
    gathered = paddle.zeros([8, 3])
    stream.all_gather(gathered, x, use_calc_stream=True)
    out["all_gather into a tensor"] = _array(gathered)
    parts = []
    stream.all_gather(parts, x, use_calc_stream=True)
    out["all_gather into a list"] = _array(paddle.concat(parts))

    for name, *source in (("all_reduce",), ("broadcast", 1), ("reduce", 1)):
        tensor = x.clone()
        getattr(stream, name)(tensor, *source, use_calc_stream=True)
        out[name] = _array(tensor)
    half = _rows(rank, dtype="bfloat16")
    dist.all_reduce(half)
    out["all_reduce in bfloat16"] = _array(half)
    return out


def _uneven_sizes(rank):
    """Rank 0 keeps 1 row and gives 3; rank 1 gives 0 and keeps 2."""
    sends = [[1, 3], [0, 2]]
    return sends[rank], [sends[peer][rank] for peer in range(2)]


class _Exchange(paddle.autograd.PyLayer):
    """All-to-all as expert layers use it: its gradient goes the way back."""

    @staticmethod
    def forward(ctx, x, in_sizes, out_sizes):
        ctx.sizes = in_sizes, out_sizes
        out = paddle.empty([sum(out_sizes), x.shape[1]], x.dtype)
        dist.stream.alltoall_single(
            out, x, out_sizes, in_sizes, None, True, True
        )
        return out

    @staticmethod
    def backward(ctx, grad):
        in_sizes, out_sizes = ctx.sizes
        out = paddle.empty([sum(in_sizes), grad.shape[1]], grad.dtype)
        dist.alltoall_single(
            out, grad, in_split_sizes=out_sizes, out_split_sizes=in_sizes
        )
        return out


def _exchanges():
    rank = dist.get_rank()
    out = {}
    for dtype in ("float32", "bfloat16", "int64"):
        x = _rows(rank, dtype=dtype)
        y = paddle.empty_like(x)
        dist.alltoall_single(y, x)
        out[f"single {dtype}"] = _array(y)
    x = _rows(rank)
    y = paddle.empty_like(x)
    dist.alltoall(y, x)
    out["tensor"] = _array(y)
    parts = []
    dist.alltoall(parts, [x[:2], x[2:]])
    out["list"] = _array(paddle.concat(parts))

    in_sizes, out_sizes = _uneven_sizes(rank)
    x = _rows(rank, sum(in_sizes))
    x.stop_gradient = False
    y = _Exchange.apply(x, in_sizes, out_sizes)
    (y * (rank + 1)).sum().backward()
    out["uneven"] = _array(y)
    out["uneven gradient"] = _array(x.grad)
    try:
        dist.alltoall_single(
            y,
            x.detach(),
            in_split_sizes=in_sizes,
            out_split_sizes=[1, 1],
        )
    except ValueError as error:
        out["refusal"] = str(error)
    return out


def _messages():
    """The middle of three ranks passes on; neighbours send before they get."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(world)))
    up, down = (rank + 1) % world, (rank - 1) % world
    x, out = _rows(rank), {}

    chain = paddle.zeros_like(x)
    if rank == 0:
        dist.send(x, 1, group=group)
    else:
        dist.recv(chain, down, group=group)
        if rank < world - 1:
            dist.send(chain + 1, up, group=group)
    out["chain"] = _array(chain)

    big = paddle.full([1 << 20], rank, "int64")
    got = paddle.zeros_like(big)
    dist.send(big, up, group=group)
    dist.barrier(group)
    dist.recv(got, down, group=group)
    out["all send first"] = got[::1000].numpy()

    first, second = paddle.zeros_like(x), paddle.zeros_like(x)
    tasks = [dist.irecv(first, down, group), dist.irecv(second, down, group)]
    dist.isend(x, up, group)
    dist.isend(2 * x, up, group)
    tasks[1].wait()
    tasks[0].wait()
    out["receives waited for in reverse"] = _array(second - first)

    ring = paddle.zeros_like(x)
    for task in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, ring, down, group),
            dist.P2POp(dist.isend, x, up, group),
        ]
    ):
        task.wait()
    out["batch that receives first"] = _array(ring)

    halves = paddle.zeros_like(x)
    pg = group.process_group
    pg.send_partial_on_calc_stream(x, up, 2, 1)
    pg.recv_partial_on_calc_stream(halves, down, 2, 1)
    out["part"] = _array(halves)
    thirds = paddle.zeros([6])
    thirds[2 * rank : 2 * rank + 2] = rank + 1.0
    pg.all_gather_partial_on_calc_stream(thirds, thirds, world, rank)
    out["all_gather of parts"] = _array(thirds)

    try:
        dist.isend(x, up, group)
        dist.recv(paddle.zeros([5]), down, group=group)
    except ValueError as error:
        out["refusal"] = str(error)
    return out


def _send_then_leave():
    """Rank 0 sends once and closes its side, as a rank that ends does."""
    x = paddle.zeros([1])
    if dist.get_rank() == 0:
        dist.send(x + 1, 1)
        rendezvous.get_mailbox()._outgoing[1].close()
        return None
    dist.recv(x, 0)
    try:
        dist.recv(x, 0)
    except ConnectionError as error:
        return float(x), str(error)


RANKS = [_array(_rows(rank)) for rank in range(3)]


def assert_equal(results, expected):
    """Compare what the ranks have with expected arrays by rank."""
    for rank, got in enumerate(results):
        assert got.keys() - {"refusal"} == expected.keys()
        for name, by_rank in expected.items():
            if by_rank[rank] is not None:
                np.testing.assert_array_equal(
                    got[name], by_rank[rank], f"{name}, rank {rank}"
                )


def test_collectives_equal_numpy():
    a, b, _ = RANKS
    total, nothing = a + b, 0 * a[:2]
    expected = {
        "reduce_scatter of a tensor": (total[:2], total[2:]),
        "reduce_scatter into a view": (
            np.concatenate([total[:2], nothing]),
            np.concatenate([nothing, total[2:]]),
        ),
        "all_gather into a tensor": (np.concatenate([a, b]),) * 2,
        "all_gather into a list": (np.concatenate([a, b]),) * 2,
        "all_reduce": (total, total),
        "broadcast": (b, b),
        "reduce": (None, total),
        "all_reduce in bfloat16": (total, total),
    }
    assert_equal(run_on_ranks(_collectives, 2), expected)


def test_all_to_all_moves_rows_and_gradients():
    a, b, _ = RANKS
    equal = (np.concatenate([a[:2], b[:2]]), np.concatenate([a[2:], b[2:]]))
    of_float32 = ("tensor", "list", "single float32")
    expected = {
        **dict.fromkeys(
            (*of_float32, "single bfloat16", "single int64"), equal
        ),
        "uneven": (a[:1], np.concatenate([a[1:], b[:2]])),
        "uneven gradient": (
            np.repeat([[1.0], [2.0], [2.0], [2.0]], 3, axis=1),
            np.full([2, 3], 2.0),
        ),
    }
    results = run_on_ranks(_exchanges, 2)
    assert_equal(results, expected)
    for got in results:
        assert "out_split_sizes=[1, 1] does not split" in got["refusal"]


@pytest.mark.slow
def test_messages_between_three_ranks():
    before = [RANKS[rank - 1] for rank in range(3)]
    parts = [np.concatenate([0 * rows[:2], rows[2:]]) for rows in before]
    expected = {
        "chain": (0 * RANKS[0], RANKS[0], RANKS[0] + 1),
        "all send first": [np.full(1049, (rank - 1) % 3) for rank in range(3)],
        "receives waited for in reverse": before,
        "batch that receives first": before,
        "part": parts,
        "all_gather of parts": ([1, 1, 2, 2, 3, 3],) * 3,
    }
    results = run_on_ranks(_messages, 3)
    assert_equal(results, expected)
    for got in results:
        assert "48 bytes for paddle.float32 of shape [5]" in got["refusal"]


@pytest.mark.slow
def test_a_peer_that_ended_is_an_error():
    got, error = run_on_ranks(_send_then_leave, 2)[1]
    assert got == 1.0
    assert error == "rank 0 ended while rank 1 waited for it"


def _knock_without_the_key():
    """Rank 0 knocks at rank 1's mailbox; then both send each other a byte."""
    box, rank = rendezvous.get_mailbox(), dist.get_rank()
    is_refused = None
    if rank == 0:
        box._store.wait(rendezvous._key(1))
        address = rendezvous._HOST, int(box._store.get(rendezvous._key(1)))
        try:
            Client(address, authkey=b"guessed")
        except AuthenticationError:
            is_refused = True
    box.send(0, 1 - rank, bytes([rank]))
    return is_refused, box.receive(0, 1 - rank)


def test_a_mailbox_takes_messages_with_the_key_alone():
    results = run_on_ranks(_knock_without_the_key, 2)
    assert results == [(True, b"\x01"), (None, b"\x00")]
