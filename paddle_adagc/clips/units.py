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
"""What a unit is in AGC (Brock et al. 2021, arXiv 2102.06171)."""

from __future__ import annotations


def unit_axes(num_axes: int, is_embedding: bool) -> tuple[int, ...]:
    """Axes along which a unit lies: what makes one output.

    A column of a linear weight ``[in, out]``, a row of an embedding
    ``[vocabulary, hidden]``, a filter of a convolution ``[out, in, ...]``; a
    vector is one unit.

    Args:
        num_axes: Of the tensor.
        is_embedding: It is an embedding.
    """
    if num_axes == 2 and not is_embedding:
        return (0,)
    return tuple(range(1 if num_axes > 1 else 0, num_axes))
