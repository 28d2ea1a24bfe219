# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages that the CPU backend adds to gloo.

Every rank knows what the others have, and compares what it got.
"""

from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks

from gloo_fleet import rendezvous


def _array(rank, num_rows=4):
    """Different numbers on every rank, whole so that sums are exact."""
    values = np.arange(num_rows * 3).reshape(num_rows, 3) + 100 * rank
    return values.astype("float32")


def _rows(rank, num_rows=4, dtype="float32"):
    return paddle.to_tensor(_array(rank, num_rows)).cast(dtype)


def _equal(tensor, expected):
    np.testing.assert_array_equal(tensor.cast("float32").numpy(), expected)


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
    own = slice(2 * rank, 2 * rank + 2)
    expected = np.concatenate([_array(peer)[own] for peer in range(2)])
    for dtype in ("float32", "bfloat16", "int64"):
        x = _rows(rank, dtype=dtype)
        y = paddle.empty_like(x)
        dist.alltoall_single(y, x)
        _equal(y, expected)
    x = _rows(rank)
    y, parts = paddle.empty_like(x), []
    dist.alltoall(y, x)
    _equal(y, expected)
    dist.alltoall(parts, [x[:2], x[2:]])
    _equal(paddle.concat(parts), expected)

    # Rank 0 keeps 1 row and gives 3; rank 1 gives 0 and keeps 2.
    in_sizes, out_sizes = (([1, 3], [1, 0]), ([0, 2], [3, 2]))[rank]
    x = _rows(rank, sum(in_sizes))
    x.stop_gradient = False
    y = _Exchange.apply(x, in_sizes, out_sizes)
    (y * (rank + 1)).sum().backward()
    to_one = np.concatenate([_array(0)[1:], _array(1)[:2]])
    _equal(y, to_one if rank else _array(0)[:1])
    taken_by = [2] * 2 if rank else [1, 2, 2, 2]
    _equal(x.grad, np.repeat(np.reshape(taken_by, [-1, 1]), 3, axis=1))
    sizes = {"in_split_sizes": in_sizes, "out_split_sizes": [1, 1]}
    with pytest.raises(ValueError, match=r"out_split_sizes=\[1, 1\] does not"):
        dist.alltoall_single(y, x.detach(), **sizes)


def _messages():
    """The middle of three ranks passes on; neighbours send before they get."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(world)))
    up, down = (rank + 1) % world, (rank - 1) % world
    x, before = _rows(rank), _array(down)

    chain = paddle.zeros_like(x)
    if rank == 0:
        dist.send(x, 1, group=group)
    else:
        dist.recv(chain, down, group=group)
        _equal(chain, _array(0) + rank - 1)
        if rank < world - 1:
            dist.send(chain + 1, up, group=group)

    big = paddle.full([1 << 20], rank, "int64")
    got = paddle.zeros_like(big)
    dist.send(big, up, group=group)
    dist.barrier(group)
    dist.recv(got, down, group=group)
    assert (got == down).all()

    first, second = paddle.zeros_like(x), paddle.zeros_like(x)
    tasks = [dist.irecv(first, down, group), dist.irecv(second, down, group)]
    dist.isend(x, up, group)
    dist.isend(2 * x, up, group)
    for task in reversed(tasks):
        task.wait()
    _equal(first, before)
    _equal(second, 2 * before)

    ring = paddle.zeros_like(x)
    receive = dist.P2POp(dist.irecv, ring, down, group)
    send = dist.P2POp(dist.isend, x, up, group)
    for task in dist.batch_isend_irecv([receive, send]):
        task.wait()
    _equal(ring, before)

    halves = paddle.zeros_like(x)
    pg = group.process_group
    pg.send_partial_on_calc_stream(x, up, 2, 1)
    pg.recv_partial_on_calc_stream(halves, down, 2, 1)
    _equal(halves, np.concatenate([0 * before[:2], before[2:]]))
    thirds = paddle.zeros([6])
    thirds[2 * rank : 2 * rank + 2] = rank + 1.0
    pg.all_gather_partial_on_calc_stream(thirds, thirds, world, rank)
    _equal(thirds, [1, 1, 2, 2, 3, 3])

    dist.isend(x, up, group)
    message = r"48 bytes for paddle.float32 of shape \[5\]"
    with pytest.raises(ValueError, match=message):
        dist.recv(paddle.zeros([5]), down, group=group)


def _send_then_leave():
    """Rank 0 sends once and closes its side, as a rank that ends does."""
    x = paddle.zeros([1])
    if dist.get_rank() == 0:
        dist.send(x + 1, 1)
        rendezvous.get_mailbox()._outgoing[1].close()
        return
    dist.recv(x, 0)
    assert float(x) == 1.0
    with pytest.raises(ConnectionError, match="0 ended while rank 1 waited"):
        dist.recv(x, 0)


def _knock_without_the_key():
    """Rank 0 knocks at rank 1's mailbox; then both send each other a byte."""
    box, rank = rendezvous.get_mailbox(), dist.get_rank()
    if rank == 0:
        box._store.wait(rendezvous._key(1))
        address = rendezvous._HOST, int(box._store.get(rendezvous._key(1)))
        with pytest.raises(AuthenticationError):
            Client(address, authkey=b"guessed")
    box.send(0, 1 - rank, bytes([rank]))
    assert box.receive(0, 1 - rank) == bytes([1 - rank])


@pytest.mark.parametrize(
    ("on_a_rank", "num_ranks"),
    [
        (_exchanges, 2),
        (_knock_without_the_key, 2),
        pytest.param(_messages, 3, marks=pytest.mark.slow),
        pytest.param(_send_then_leave, 2, marks=pytest.mark.slow),
    ],
)
def test_each_rank_gets_what_it_should(on_a_rank, num_ranks):
    run_on_ranks(on_a_rank, num_ranks)
