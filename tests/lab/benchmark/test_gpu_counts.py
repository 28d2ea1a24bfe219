# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from paddle_adagc.lab.benchmark.gpu_counts import WIDTHS, count, to_markdown
from paddle_adagc.lab.benchmark.tensor_lists import equal_shapes


@pytest.mark.parametrize(
    ("num_tensors", "operations"), [(196, 5), (219, 5), (747, 6), (3828, 12)]
)
@pytest.mark.parametrize(("share", "passes"), [(0.0, 1), (0.1, 1.2), (1.0, 3)])
@pytest.mark.parametrize("dtype", WIDTHS)
def test_kernels_are_a_few_launches_and_read_what_they_scale(
    num_tensors, operations, share, passes, dtype
):
    shapes = equal_shapes(num_tensors, 10_000_000)
    reference, operators, fused = count(shapes, share, dtype)
    assert fused.operations == operations
    assert fused.bytes_per_value == pytest.approx(passes * WIDTHS[dtype])
    assert reference.operations == 3 * num_tensors
    assert operators.operations > reference.operations
    table = to_markdown({dtype: [reference, operators, fused]})
    assert table.count("\n") == 2 + 3
