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
"""Numbers of several seeds as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Value = float | str | None
"""One number or word of a run; None where there is none."""


def format_list(values: Sequence[Value], spec: str = ",.0f") -> str:
    """Format one value per seed: ``"9 / 8 / 12"``.

    Args:
        values: One number per seed, ``None`` where there is none.
        spec: Format specification of a number.
    """
    parts = [_text(value, spec) for value in values]
    return "–" if set(parts) == {"–"} else " / ".join(parts)


def format_steps(values: Sequence[Value]) -> str:
    """Format one number of steps per seed; infinite is ``"never"``."""
    return format_list(values).replace("∞", "never")


def format_same(values: Sequence[Value]) -> str:
    """Format one value per seed, once if all are the same."""
    parts = [_text(value, ",.0f") for value in values]
    return parts[0] if len(set(parts)) == 1 else " / ".join(parts)


def format_spread(values: Sequence[Value], spec: str) -> str:
    """Format the seeds' mean ± sample standard deviation.

    A single value stands alone; if a value is missing or not finite, the
    values are listed instead.
    """
    finite = [
        v for v in values if isinstance(v, (int, float)) and math.isfinite(v)
    ]
    if len(finite) < len(values) or len(finite) < 2:
        return format_list(values, spec)
    mean, spread = statistics.fmean(finite), statistics.stdev(finite)
    return f"{mean:{spec}} ± {spread:{spec}}"


def format_quartiles(values: Sequence[float], spec: str) -> str:
    """Format the median and the quartiles: ``"21.1 (20.5-21.6)"``."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:{spec}} ({low:{spec}}-{high:{spec}})"


def _text(value: Value, spec: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:{spec}}"
