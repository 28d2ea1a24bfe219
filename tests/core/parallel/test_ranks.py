# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The helper that runs functions on ranks."""

import logging
import math
import os
import re
import time

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet

from paddle_adagc import ClipGradByAdaGC


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


def _meet_nan_on_rank_one(nonfinite, calls):
    start_fleet(dp=2)
    model = paddle.nn.Linear(1, 1)
    clip = ClipGradByAdaGC(nonfinite=nonfinite)
    clip.bind(model)
    said = []
    logger = logging.getLogger("paddle_adagc.parallel.agreement")
    logger.addFilter(lambda record: said.append(record.getMessage()))
    grad = paddle.full([1, 1], math.nan if dist.get_rank() else 1.0)
    try:
        clip([(model.weight, grad)])
        for call in calls:
            getattr(clip, call)()
    except FloatingPointError as error:
        said.append(str(error))
    return said


@pytest.mark.parametrize(
    ("nonfinite", "calls", "message"),
    [
        ("raise", [], "1 tensors .* step 0: weight on rank 1"),
        ("zero", ["full_state_dict"], "'weight'.* {0: 0, 1: 1}"),
        ("zero", ["summary", "summary"], "'weight'.* {0: 0, 1: 1}"),
    ],
)
def test_data_parallel_ranks_hear_of_one_rank_s_nan(nonfinite, calls, message):
    first, second = run_on_ranks(
        _meet_nan_on_rank_one, 2, nonfinite=nonfinite, calls=calls
    )
    assert first == second
    assert re.search(message, *first)


@pytest.mark.slow
def test_ranks_that_hang_are_killed_and_show_their_stacks():
    with pytest.raises(TimeoutError, match=r"(?s)after 6 s.*_hang"):
        run_on_ranks(_hang, 2, timeout=6)
