# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import math

import numpy as np
import pytest

from paddle_adagc.lab.benchmark import clip_step, tensor_lists
from paddle_adagc.lab.benchmark.contenders import (
    CONTENDERS,
    AdaGC,
    AdaGCByOperators,
    ByNorm,
    GlobalGC,
    MemoryFloor,
    WaitingLoop,
)

SHAPES = [(4, 3), (5,), (2, 2), (6, 1)]


def test_ernie_list_is_that_of_the_paper():
    shapes = tensor_lists.recipe_shapes("ernie-10b-a1.4b")
    assert len(shapes) == 3828
    assert 120e6 < sum(math.prod(shape) for shape in shapes) < 130e6


def test_llama_list_is_of_a_few_large_tensors():
    shapes = tensor_lists.recipe_shapes("llama2-1.3b")
    assert len(shapes) == 24 * 9 + 3
    assert 240e6 < sum(math.prod(shape) for shape in shapes) < 260e6


@pytest.mark.parametrize("name", tensor_lists.LISTS)
def test_lists_have_the_full_model_s_number_of_tensors(name):
    from paddle_adagc.lab.models.families import preset
    from paddle_adagc.lab.models.shapes import model_size

    full = preset(tensor_lists.LISTS[name][0])
    shapes = tensor_lists.recipe_shapes(name)
    assert len(shapes) == model_size(full).tensors_without_routers


def norms_after(kind, clipped):
    """Norm of each gradient after a step, as a multiple of that before."""
    pairs = tensor_lists.make_pairs(tensor_lists.equal_shapes(4, 40_000))
    before = [float(g.norm()) for _, g in pairs]
    contender = kind(pairs, np.array(clipped))
    contender.prepare([g.clone() for _, g in pairs])
    result = contender.step()
    after = pairs if result is None else result
    return [
        float(g.norm()) / old for (_, g), old in zip(after, before, strict=True)
    ]


@pytest.mark.parametrize("kind", [AdaGC, AdaGCByOperators, WaitingLoop])
def test_per_tensor_contenders_scale_what_they_are_told_to(kind):
    pairs = tensor_lists.make_pairs(tensor_lists.equal_shapes(4, 40_000))
    clipped = np.array([True, False, True, False])
    contender = kind(pairs, clipped)
    for _ in range(2):  # prepare brings the thresholds back
        before = [float(g.norm()) for _, g in pairs]
        contender.prepare([g.clone() for _, g in pairs])
        contender.step()
        after = [float(g.norm()) for _, g in pairs]
        assert [b < a for a, b in zip(before, after, strict=True)] == [*clipped]
        for _, gradient in pairs:
            gradient.scale_(1 / float(gradient.norm()))


@pytest.mark.parametrize("kind", [GlobalGC, ByNorm])
def test_paddle_s_clips_scale(kind):
    assert max(norms_after(kind, [True] * 4)) < 1


def test_floor_touches_the_share_that_is_clipped():
    pairs = tensor_lists.make_pairs(SHAPES)
    floor = MemoryFloor(pairs, np.array([True, False, False, True]))
    assert (floor._all.size, floor._part.size) == (12 + 5 + 4 + 6, 12 + 6)


def test_comparison_has_a_row_per_contender():
    shapes = tensor_lists.equal_shapes(20, 2000)
    rows = clip_step.compare(shapes, 0.25, 3)
    assert [row.contender for row in rows] == [kind.name for kind in CONTENDERS]
    by_name = {row.contender: row for row in rows}
    for row in rows:
        assert len(row.seconds) == 3
        assert min(row.seconds) > 0
        assert (row.num_tensors, row.num_values) == (20, 2000)
    assert by_name["GlobalGC"].of_reference == (1.0, 1.0, 1.0)
    assert by_name["memory floor"].of_floor == (1.0, 1.0, 1.0)
    table = clip_step.to_markdown(rows)
    assert table.count("\n") == 2 + len(rows)


def test_operator_calls_of_a_step_grow_only_without_the_compiled_loops():
    few, many = (
        {
            row.contender: row.operator_calls
            for row in clip_step.compare(
                tensor_lists.equal_shapes(n, 1000), 0.1, 2
            )
        }
        for n in (10, 30)
    )
    assert few["AdaGC"] == many["AdaGC"]
    assert few["memory floor"] == 0
    per_tensor = (
        many["AdaGC, operators only"] - few["AdaGC, operators only"]
    ) / 20
    assert per_tensor == pytest.approx(1.1)  # a norm; one in ten is scaled
    assert (many["GlobalGC"] - few["GlobalGC"]) / 20 == 2
