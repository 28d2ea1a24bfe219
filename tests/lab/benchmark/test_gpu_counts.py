# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
