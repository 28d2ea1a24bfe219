# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the CPU backend is refused; mailboxes of ranks that end, of strangers.

The layouts of core/parallel prove what the ranks send each other.
"""

from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks

import gloo_fleet
from gloo_fleet import rendezvous


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
    "on_a_rank",
    [
        _knock_without_the_key,
        pytest.param(_send_then_leave, marks=pytest.mark.slow),
    ],
)
def test_two_ranks(on_a_rank):
    run_on_ranks(on_a_rank, 2)


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (paddle, "is_compiled_with_xpu", "built for an accelerator"),
        (dist, "is_initialized", r"before fleet\.init"),
    ],
)
def test_it_is_refused_where_it_cannot_help(monkeypatch, owner, name, message):
    monkeypatch.setattr(gloo_fleet, "_PATCHES", {})
    monkeypatch.setattr(owner, name, lambda: True)
    with pytest.raises(RuntimeError, match=message):
        gloo_fleet.enable()
    assert not gloo_fleet._enabled
