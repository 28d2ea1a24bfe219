# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers of several seeds as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Value = float | str | None
"""One number or word of a run; None where there is none."""

_MOST_LISTED = 5
"""Seeds whose measurements are listed one by one."""


def rounded(value: float) -> float:
    """Round to the nine digits on which all processors agree."""
    return float(f"{value:.9g}")


def format_list(values: Sequence[Value], spec: str = ",.0f") -> str:
    """Format one value per seed, None where there is none: ``"9 / – / 12"``."""
    parts = [_text(value, spec) for value in values]
    return "–" if set(parts) == {"–"} else " / ".join(parts)


def format_same(values: Sequence[Value]) -> str:
    """Format one value per seed, once if all are the same."""
    parts = [_text(value, ",.0f") for value in values]
    return parts[0] if len(set(parts)) == 1 else " / ".join(parts)


def format_spread(values: Sequence[Value], spec: str) -> str:
    """Format as ``"1.2 ± 0.1 (3 of 8)"``; list values that have no spread."""
    known = _all_finite(values)
    if known is None or len(known) < 2:
        return format_list(values, spec)
    mean = rounded(statistics.fmean(known))
    spread = rounded(statistics.stdev(known))
    return f"{mean:{spec}} ± {spread:{spec}}{_share(known, values)}"


def format_range(values: Sequence[Value], spec: str) -> str:
    """List up to five values, more as ``"0.21 (0.10-0.34)"``: the median."""
    known = _all_finite(values)
    if not known:
        return format_list(values, spec)
    if len(known) <= _MOST_LISTED:
        return format_list(known, spec) + _share(known, values)
    low, middle, high = min(known), statistics.median(known), max(known)
    dash = " to " if "+" in spec else "-"
    text = f"{middle:{spec}} ({low:{spec}}{dash}{high:{spec}})"
    return text + _share(known, values)


def _all_finite(values: Sequence[Value]) -> list[float] | None:
    """Return the values that there are; None if one is no finite number."""
    known = [v for v in values if v is not None]
    numbers = [
        v for v in known if isinstance(v, (int, float)) and math.isfinite(v)
    ]
    return numbers if len(numbers) == len(known) else None


def _share(known: Sequence[Value], values: Sequence[Value]) -> str:
    if len(known) == len(values):
        return ""
    return f" ({len(known)} of {len(values)})"


def format_quartiles(values: Sequence[float], spec: str) -> str:
    """Format the median and the quartiles: ``"21.1 (20.5-21.6)"``."""
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:{spec}} ({low:{spec}}-{high:{spec}})"


def two_digits(value: float) -> str:
    """Format a spread by two significant digits: ``"140"``, ``"0.0027"``."""
    return f"{float(f'{value:.2g}'):g}"


def _text(value: Value, spec: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:{spec}}"
