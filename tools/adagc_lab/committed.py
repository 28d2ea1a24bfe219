# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers in committed files: no more digits than every processor computes.

The last digits of a computed float depend on the processor: its vectors decide
in which order numbers are added, and by which polynomial an exponential is
approximated. Files that are committed therefore hold rounded numbers, and are
compared with a tolerance.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

DOUBLE = 9
"""Significant digits of what is computed in double precision."""

SINGLE = 7
"""Significant digits of what a training in float32 gives: those of float32.

With 6, losses of paired runs would tie that differ.
"""

TOLERANCE = 1e-7
"""Relative: a rounded last digit may fall on either side."""

_MOST_SAID = 10
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


def rounded(value: float, digits: int = DOUBLE) -> float:
    """Round to significant digits; what is not finite stays."""
    return float(f"{value:.{digits}g}")


def as_json(value: Any, indent: int | None = None) -> str:
    """Return the text of a JSON value, with a line's end.

    Floats have :data:`DOUBLE` digits; those that are not finite are the texts
    ``"inf"``, ``"-inf"`` and ``"nan"``.
    """
    text = json.dumps(
        _plain(value), indent=indent, ensure_ascii=False, allow_nan=False
    )
    return f"{text}\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def differences(present: str, computed: str) -> list[str]:
    """Compare two texts line by line, and say what differs.

    Words and integers must be equal, other numbers up to :data:`TOLERANCE`.
    Lines after the first with other words are not compared.
    """
    found = []
    lines = itertools.zip_longest(present.split("\n"), computed.split("\n"))
    for number, (old, new) in enumerate(lines, 1):
        if old == new:
            continue
        if old is None or new is None or _words(old) != _words(new):
            pairs = zip(old or "", new or "", strict=False)
            start = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
            is_, computed = (_quoted(line, start) for line in (old, new))
            found.append(f"line {number}: is {is_}, computed {computed}")
            break
        label = old.partition(":")[0].strip()[:40]
        found += [
            f"line {number}, {label}: is {a}, computed {b} (relative "
            f"difference {_relative(a, b):.2g})"
            for a, b in zip(
                _NUMBER.findall(old), _NUMBER.findall(new), strict=True
            )
            if not _same(a, b)
        ]
    more = len(found) - _MOST_SAID
    return found[:_MOST_SAID] + [f"and {more} more"] * (more > 0)


def _words(line: str) -> list[str]:
    return _NUMBER.split(line)


def _quoted(line: str | None, start: int) -> str:
    """Return the part around the first difference."""
    if line is None:
        return "no line"
    return repr(line[max(0, start - 20) : start + 40].strip())


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    if one.lstrip("+-−").isdigit() and other.lstrip("+-−").isdigit():
        return False
    return math.isclose(
        _value(one), _value(other), rel_tol=TOLERANCE, abs_tol=1e-15
    )


def _relative(one: str, other: str) -> float:
    a, b = _value(one), _value(other)
    return abs(a - b) / max(abs(a), abs(b))
