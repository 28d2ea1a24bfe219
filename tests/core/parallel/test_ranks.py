# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The helper that runs functions on ranks."""

import os
import time

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks


def _identity(word):
    total = paddle.to_tensor([1.0])
    dist.all_reduce(total)
    return word, dist.get_rank(), os.getpid(), float(total)


def _fail_on_rank_one():
    if dist.get_rank() == 1:
        raise ValueError("broken on purpose")
    dist.barrier()


def _hang():
    if dist.get_rank() == 0:
        time.sleep(600)
    dist.barrier()


def test_every_rank_is_a_process_and_returns_its_result():
    results = run_on_ranks(_identity, 2, word="x")
    assert [r[:2] for r in results] == [("x", 0), ("x", 1)]
    assert len({r[2] for r in results} | {os.getpid()}) == 3
    assert [r[3] for r in results] == [2.0, 2.0]


def test_the_failing_rank_shows_its_traceback_and_ends_the_others():
    with pytest.raises(RuntimeError, match=r"(?s)rank1:.*broken on purpose"):
        run_on_ranks(_fail_on_rank_one, 2)


@pytest.mark.slow
def test_ranks_that_hang_are_killed_and_show_their_stacks():
    with pytest.raises(TimeoutError, match=r"(?s)after 6 s.*_hang"):
        run_on_ranks(_hang, 2, timeout=6)
