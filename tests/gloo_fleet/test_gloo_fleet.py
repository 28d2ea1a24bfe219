# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the CPU backend is refused, and ranks that end.

The layouts of core/parallel prove what the ranks send each other.
"""

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


@pytest.mark.slow
def test_a_rank_hears_that_another_has_ended():
    run_on_ranks(_send_then_leave, 2)


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
