# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units in slices of parameters, whose begins the ranks ask each other."""

import paddle
import pytest

from paddle_adagc.clips.unit_cuts import UnitCuts
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.parallel.units import Piece, Unit


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
    holders = {
        first: TensorLayout(key=key, shape=(6,), units=units)
        for first, key, units in ((0, "a", (*a,)), (2, "b", (*b,)))
    }
    cuts = UnitCuts(tensors, holders)
    topology = Topology(sharding=Axis(1, 2, "pair"), splits_parameters=True)
    entries = [0, 2]
    asked = []

    def gather(parts, mine, group):
        asked.append(mine)
        parts += [dict(zip(entries, other, strict=True)), mine]

    monkeypatch.setattr(paddle.distributed, "all_gather_object", gather)
    gradients = [paddle.ones([4]), paddle.ones([3])]

    def find(present):
        found = {entries[i]: gradients[i] for i in present}
        return cuts.find_segments(found, topology, lambda key: False)

    if message and len(first) == 2:
        with pytest.raises(RuntimeError, match=message):
            find(first)
        return
    segments = find(first)
    assert segments.runs["entry"].tolist()[:2] == [0, 1]
    assert segments.start.tolist()[:2] == [0, 1]
    assert segments.size.tolist()[:2] == [1, 3]
    if message:
        with pytest.raises(RuntimeError, match=message):
            find([0, 1])
    assert len(asked) == 1
