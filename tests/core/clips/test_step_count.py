# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""When a step begins: one row for each sequence of calls."""

import paddle
import pytest

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.step_count import StepCount
from paddle_adagc.paddle_internals import Caller

# A call is (optimizer, parameter group, tensors with a gradient).
A, B = "A", "B"
BY_OPTIMIZERS = {
    "one group": ([(A, 0, [0, 1])] * 3, 3),
    "the same tensors in each step": ([(A, 0, [0])] * 4, 4),
    "two groups": ([(A, 0, [0]), (A, 1, [1])] * 3, 3),
    "a group frozen from the third step on": (
        [(A, 0, [0]), (A, 1, [1])] * 2 + [(A, 0, [0]), (A, 1, [])] * 3,
        5,
    ),
    "the first group frozen": ([(A, 0, []), (A, 1, [1])] * 3, 3),
    "groups frozen in turn": (
        [(A, 0, [0]), (A, 1, []), (A, 0, []), (A, 1, [1])] * 2,
        4,
    ),
    "two sets of tensors in turn": ([(A, 0, [0]), (A, 0, [1])] * 3, 6),
    "no gradients": ([(A, 0, []), (A, 1, [])] * 3, 0),
    "some steps without gradients": ([(A, 0, [0]), (A, 0, [])] * 3, 3),
    "the clip is one group's alone": ([(A, 1, [1])] * 3, 3),
    "two optimizers": ([(A, 0, [0]), (B, 0, [1])] * 3, 3),
    "two optimizers with groups": (
        [(A, 0, [0]), (A, 1, [1]), (B, 0, [2]), (B, 1, [3])] * 2,
        2,
    ),
    "a GAN whose critic makes two steps": (
        [(A, 0, [0]), (A, 0, [0]), (B, 0, [1])] * 3,
        6,
    ),
    "another optimizer of the same tensors": (
        [(A, 0, [0, 1])] * 3 + [(B, 0, [0, 1])] * 3,
        6,
    ),
    "the first of two has no gradients": ([(A, 0, []), (B, 0, [1])] * 3, 3),
    "groups of unknown number": ([(A, None, [0]), (A, None, [1])] * 3, 3),
}


class Optimizer:
    """Stands for one: the count asks for its identity alone."""


def count_calls(calls):
    made, steps = {A: Optimizer(), B: Optimizer()}, StepCount()
    for name, group, indexes in calls:
        caller = Caller(made[name], group)
        steps = steps.after(indexes, caller, makes_step=bool(indexes))
    return steps


@pytest.mark.parametrize("case", BY_OPTIMIZERS)
def test_steps_of_optimizers(case):
    calls, num_steps = BY_OPTIMIZERS[case]
    steps = count_calls(calls)
    assert steps.num_steps == num_steps
    assert not steps.is_mixed


def test_each_call_by_hand_is_a_step():
    steps = StepCount()
    for indexes in ([], [0], [1], [], [0]):  # other ranks have gradients
        steps = steps.after(indexes, None, makes_step=True)
    assert steps.num_steps == 5
    assert steps.after([], None, makes_step=False).num_steps == 5


def test_steps_continue_from_a_saved_number():
    calls = [(A, 0, [0]), (A, 1, [1])]
    steps = count_calls(calls[:1]).resumed_at(7)  # in the middle of a step
    assert steps.after([1], Caller(Optimizer(), 1), True).num_steps == 8


@pytest.mark.filterwarnings("error")
def test_optimizers_one_after_the_other_are_no_two_in_turn():
    """One may be made where an earlier one was."""
    model, clip = paddle.nn.Linear(1, 1), ClipGradByAdaGC()
    for _ in range(50):
        optimizer = paddle.optimizer.SGD(
            0.1, parameters=model.parameters(), grad_clip=clip
        )
        model(paddle.ones([1, 1])).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    assert clip.num_steps == 50
