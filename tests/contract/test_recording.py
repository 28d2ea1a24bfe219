# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A record that fails ends, says why, and leaves the training as it is."""

import contextlib
import gc
import warnings

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from contract.faults import PACKAGE, TEXT, calls, failing
from core.parallel.ranks import run_on_ranks
from paddle.distributed import fleet

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record

NUM_STEPS = 3
OPTIONS = {
    "Paddle's clip": (lambda: paddle.nn.ClipGradByGlobalNorm(0.1), {}),
    "AdaGC": (
        lambda: ClipGradByAdaGC(t_start=2),
        {"skip_above": 8.0, "stop_on": "nan"},
    ),
}


def train(name, folder=None, around=contextlib.nullcontext):
    """Return the weights; ``around`` begins once a record is made."""
    make_clip, options = OPTIONS[name]
    paddle.seed(1)
    model = paddle.nn.Linear(4, 2)
    optimizer = paddle.optimizer.AdamW(
        0.01, parameters=model.parameters(), grad_clip=make_clip()
    )
    record = None
    if folder is not None:
        record = Record(folder, optimizer, model, num_steps=2, **options)
        record.see_losses()
    rank = dist.get_rank()
    with around():
        for step in range(NUM_STEPS):
            rng = np.random.default_rng([step, rank])
            x = paddle.to_tensor(rng.normal(size=(8, 4)).astype("float32"))
            model(x).square().mean().backward()
            if dist.get_world_size() > 1:
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.clear_grad()
            if record is not None:
                record.step()
                assert not record.should_stop
        if record is not None:
            record.worst(), record.latest(), record.alarms
            record.close()
    return [parameter.numpy() for parameter in model.parameters()]


def found_calls(name, folder):
    """Functions that recording calls, and a training without it does not."""
    train(name, f"{folder}-first")  # what is cached is called once
    with calls(only_of_the_package=False) as plain:
        train(name)
    found = []

    @contextlib.contextmanager
    def collect():
        with calls() as mine:
            yield
        found.extend(key for key in mine if key not in plain)

    train(name, folder, collect)
    return found


def check(name, folder, plain, key=None):
    """Train with a record of which a call fails.

    Returns:
        What was said of it, and whether it was called.
    """
    gc.collect()  # an earlier record ends outside of the fault
    failed = []

    @contextlib.contextmanager
    def around():
        nonlocal failed
        with failing(key) as failed:
            yield

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights = train(name, folder, around if key else contextlib.nullcontext)
    for mine, expected in zip(weights, plain, strict=True):
        np.testing.assert_array_equal(mine, expected, err_msg=str(key))
    said = [str(w.message) for w in caught if TEXT in str(w.message)]
    return said, bool(failed)


def fail_alone(folder):
    """A function that failed under the first clip is left out of the next."""
    seen, num_failed = set(), 0
    for name in OPTIONS:
        plain, keys = train(name), found_calls(name, f"{folder}/{name}")
        for i, key in enumerate(key for key in keys if key not in seen):
            said, has_failed = check(name, f"{folder}/{name} {i}", plain, key)
            assert len(said) == has_failed, key
            num_failed += has_failed
        seen |= {*keys}
    assert num_failed > 50


def test_each_call_of_a_record_may_fail(tmp_path):
    """In a process of its own: each case collects garbage."""
    run_on_ranks(fail_alone, 1, folder=str(tmp_path))


def fail_on_rank(folder):
    fleet.init(is_collective=True)
    name = "AdaGC"
    plain, keys = train(name), found_calls(name, f"{folder}/whole")
    of_ranks = []
    own = [key for key in keys if key[0].startswith(PACKAGE)]
    dist.all_gather_object(of_ranks, own)
    for rank, its_keys in enumerate(of_ranks):
        assert len(its_keys) > 20
        for i, key in enumerate(its_keys):
            is_mine = rank == dist.get_rank()
            place = f"{folder}/{rank}-{i}"
            given = key if is_mine else None
            said, has_failed = check(name, place, plain, given)
            # The others may have no copy after a fault at the end.
            assert len(said) == has_failed or not is_mine, key
            assert len(said) <= 1, key


@pytest.mark.slow
def test_each_call_may_fail_on_one_of_two_ranks(tmp_path):
    run_on_ranks(fail_on_rank, 2, timeout=600, folder=str(tmp_path))


def test_a_callback_that_fails_does_not_end_the_training(tmp_path):
    def fail(line):
        raise OSError(TEXT)

    model = paddle.nn.Linear(4, 2)
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    record = Record(tmp_path, optimizer, model, on_alarm=fail)
    model(paddle.full([1, 4], float("nan"))).sum().backward()
    optimizer.step()
    record.step()
    with pytest.warns(UserWarning, match=TEXT):
        record.close()


def test_errors_of_the_caller_are_raised(tmp_path):
    model = paddle.nn.Linear(4, 2)
    clip = ClipGradByAdaGC(nonfinite="raise")
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=clip
    )
    with pytest.raises(ValueError, match="num_steps"):
        Record(tmp_path, optimizer, model, num_steps=0)
    with pytest.raises(TypeError, match="Record"):
        Record(tmp_path, model, optimizer)
    record = Record(tmp_path, optimizer, model)
    with pytest.raises(TypeError, match="scalar"):
        record.step(paddle.ones([2]))
    with pytest.raises(ValueError, match="own"):
        record.step(step=3)
    model(paddle.full([1, 4], float("nan"))).sum().backward()
    with pytest.raises(Exception, match=r"not finite|Inf or NaN"):
        optimizer.step()
    record.close()
