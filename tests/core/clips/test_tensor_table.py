# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_adagc.clips import tensor_table
from paddle_adagc.clips.tensor_table import StepCount, UnitCuts
from paddle_adagc.kernels.pairs import KnownPairs
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.parallel.units import Piece, Unit


def after(calls, has_one_state=False):
    steps = StepCount()
    for slots in calls:
        steps = steps.after(slots, has_one_state)
    return steps


@pytest.mark.parametrize(
    ("calls", "num_steps", "is_irregular"),
    [
        ([[]] * 3, 3, False),  # a call without gradients is a step
        ([[], [0], [0], [], [0], [], [0]], 7, False),
        ([[], [0], []], 3, False),
        # Groups make up a step until a tensor comes by again.
        ([[0, 1], [2], [0, 1], [2], [0], [1, 2]], 3, False),
        ([[0], [0], [0]], 3, False),
        ([[0, 1], [0], [0, 1]], 3, False),
        ([[0], [1], [0], [1], [0]], 3, False),
        ([[0], [1], [2], [0], [1], [2], [0]], 3, False),
        ([[0], [1], [0], [0]], 3, True),
        ([[0], [1], [0], [0], [1], [0], [1]], 4, True),
    ],
)
def test_steps_and_tensors_that_come_by_more_often(
    calls, num_steps, is_irregular
):
    steps = after(calls)
    assert (steps.num_steps, steps.is_irregular) == (num_steps, is_irregular)


@pytest.mark.parametrize(
    "calls",
    [
        [[0], [], [0], []],
        [[], [0], [], [0], []],
        [[0], [], [], [0], []],
        [[0], [1], []],
        [[0], [1], [0], []],
    ],
)
def test_a_group_without_gradients_is_refused(calls):
    with pytest.raises(RuntimeError, match="apply_decay_param_fun"):
        after(calls)


@pytest.mark.parametrize("calls", [[[0], [1]], [[0, 1], [0, 1], [2]]])
def test_several_groups_are_refused_where_one_is_needed(calls):
    with pytest.raises(RuntimeError, match="for all tensors: use one group"):
        after(calls, has_one_state=True)
    assert after([[0, 1]] * 3, has_one_state=True).num_steps == 3


def test_steps_go_on_from_a_saved_number():
    steps = StepCount().after([0]).resumed_at(7)
    assert steps.after([1]).num_steps == 8
    steps = after([[0], [1], [0]]).resumed_at(7)  # in the middle of a step
    for slots, num_steps in (([0], 8), ([1], 8), ([0], 9), ([1], 9)):
        steps = steps.after(slots)
        assert (steps.num_steps, steps.is_irregular) == (num_steps, False)


def in_groups(steps, resumes_after=None):
    """Counts after each step of an optimizer; a step is its groups' tensors."""
    count, counts = StepCount(), []
    for step, groups in enumerate(steps):
        if step == resumes_after:
            count = count.resumed_at(count.num_steps)
        for slots in groups:
            count = count.after(slots) if slots else count.after_empty_group()
        counts.append(count)
    return counts


GROUPS = [[0, 1], [2], [3, 4], [5]]


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_groups_are_frozen_and_unfrozen_at_will(data):
    num_groups = data.draw(st.integers(1, 4))
    mask = st.lists(st.booleans(), min_size=num_groups, max_size=num_groups)
    first = data.draw(mask.filter(any))
    masks = [first, first, *data.draw(st.lists(mask, max_size=10))]
    steps = [
        [slots if on else [] for slots, on in zip(GROUPS, mask, strict=False)]
        for mask in masks
    ]
    num_steps = 0
    counts = in_groups(steps, data.draw(st.integers(2, len(steps))))
    for groups, count in zip(steps, counts, strict=True):
        if any(groups):
            num_steps += 1
            assert count.seen.keys() == {s for slots in groups for s in slots}
        assert count.num_steps == num_steps
        assert not count.is_irregular


def test_a_group_that_is_added_to_others_joins_their_steps():
    for before in ([[0]], [[0], [1]]):
        counts = in_groups([before] * 3 + [[*before, [2]]] * 3)
        assert [count.num_steps for count in counts] == [1, 2, 3, 4, 5, 6]
    counts = in_groups([[[], [0]]] * 3 + [[[], [0], [2]]] * 5)
    assert [c.num_steps for c in counts[-3:]] == [7, 8, 9]  # one too many
    assert counts[-1].seen.keys() == {0, 2}


@pytest.mark.parametrize(
    ("other", "first", "message"),
    [
        ((2, 3), [0, 1], None),
        ((2, 0), [0], "'?b.*first gradient after the first step"),
        ((0, 3), [0, 1], r"slices of a.0 .* have \[0, 4\] values"),
    ],
)
def test_slices_without_a_gradient_in_the_first_step(
    monkeypatch, other, first, message
):
    """Rank 1 of 2 has 4 of the 6 values of a, and 3 of the 6 of b."""
    a = [Unit(f"a.{i}", (3,), Piece(3 * i, 3)) for i in range(2)]
    b = [Unit("b", (6,), Piece(0, 6))]
    tensors = [TensorLayout(key=unit.key) for unit in a + b]
    cuts = UnitCuts({0: a, 2: b}, tensors)
    topology = Topology(sharding=Axis(1, 2), splits_parameters=True)
    slots = [0, 2]
    asked = []

    def gather(parts, mine, group):
        asked.append(mine)
        parts += [dict(zip(slots, other, strict=True)), mine]

    monkeypatch.setattr(tensor_table.dist, "all_gather_object", gather)
    gradients = [paddle.ones([4]), paddle.ones([3])]

    def find(present):
        pairs = [(None, gradients[i]) for i in present]
        found = KnownPairs(pairs, [slots[i] for i in present], [], None)
        return cuts.find(found, topology, lambda key: False)[0]

    if message and len(first) == 2:
        with pytest.raises(RuntimeError, match=message):
            find(first)
        return
    segments = find(first)
    assert segments.runs["slot"].tolist()[:2] == [0, 1]
    assert segments.start.tolist()[:2] == [0, 1]
    assert segments.size.tolist()[:2] == [1, 3]
    if message:
        with pytest.raises(RuntimeError, match=message):
            find([0, 1])
    assert len(asked) == 1
