# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments; each returns the value, or its error names it.

``TypeError`` for a value of a wrong type, ``ValueError`` for any other. The
standard library is enough here, as ``adagc-run`` has to start at once.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

_SMALLEST, _LARGEST = 2.0**-126, 2.0**128 - 2.0**104  # normal in float32
_ROUNDS_TO_1 = 1 - 2.0**-25  # in float32
_LARGEST_INTEGER = 2**63 - 1


class KnownAttributes:
    """Refuses public attributes that its class does not know.

    An attribute is known that the class has or annotates.
    """

    _checks: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {}
    """Attribute -> its check, which takes name and value whenever the attribute
    is set, and returns what to store."""

    _fixed: ClassVar[Collection[str]] = ()
    """Attributes that only the constructor can set."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Check and set an attribute, or name the one that is meant."""
        if name in self._fixed and name in vars(self):
            raise AttributeError(
                f"{name} cannot be changed: the state of this "
                f"{type(self).__name__} depends on it. Make another one, "
                "and give it the state if it fits"
            )
        if name in self._checks:
            value = self._checks[name](name, value)
        elif not name.startswith("_"):
            cls: Any = type(self)
            known = _public_names(cls)
            if name not in known:
                raise AttributeError(
                    f"{type(self).__name__} has no attribute {name!r}"
                    f"{name_hint(name, known)}"
                )
        super().__setattr__(name, value)


@functools.cache
def _public_names(cls: type) -> frozenset[str]:
    names = {*dir(cls)}.union(*map(inspect.get_annotations, cls.__mro__))
    return frozenset(name for name in names if not name.startswith("_"))


def check_integer(name: str, value: Any, minimum: int) -> int:
    """At most that of int64; ``True`` and ``1.0`` are no integers."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    if number > _LARGEST_INTEGER:
        size = f"about 2**{number.bit_length()}"
        raise ValueError(f"{name} must be at most 2**63 - 1, got {size}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return True or False; TypeError for anything else."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_real(name: str, value: Any) -> float:
    """A number that is finite, and not rounded to 0, in float32."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number!r}")
    if number and not _SMALLEST <= abs(number) <= _LARGEST:
        raise ValueError(
            f"{name} must be 0 or from {_SMALLEST:.2g} to {_LARGEST:.2g} in "
            f"size, got {number!r}: float32 does not hold it"
        )
    return number


def check_positive(name: str, value: Any) -> float:
    """Return a real number above 0 as a float; refuse others."""
    if (number := check_real(name, value)) <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def check_decay(name: str, value: Any) -> float:
    """Return a number in [0, 1) as a float; refuse others."""
    number = check_real(name, value)
    if not 0 <= number < _ROUNDS_TO_1:
        raise ValueError(
            f"{name} must be in [0, 1), in float32 too, got {value!r}"
        )
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``; else name the nearest."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(choices)}; "
            f"got {value!r}{suggestion(value, choices)}"
        )
    return value


def matching_pattern(
    name: str, patterns: Iterable[str], key: str
) -> str | None:
    """Return the pattern of ``name`` that a tensor's key matches, if any."""
    found = [pattern for pattern in patterns if re.search(pattern, key)]
    if len(found) > 1:
        raise ValueError(
            f"{name}: {key!r} matches both {found[0]!r} and {found[1]!r}: "
            "make the patterns narrower"
        )
    return found[0] if found else None


def suggestion(
    value: Any,
    choices: Collection[str],
    prefix: str = "",
    *,
    similarity: float = 0.4,
) -> str:
    """``", did you mean 'x'?"`` with the choice nearest to ``value``, or "".

    ``prefix`` stands before the choice; ``similarity`` is the least one, from 0
    to 1 (equal).
    """
    near = difflib.get_close_matches(str(value), choices, 1, similarity)
    return f", did you mean {prefix + near[0]!r}?" if near else ""


_OTHER_NAMES = ("clip_norm", "max_norm", "max_grad_norm")
"""The global norm's bound in other clips, which is lambda_abs here."""


def name_hint(name: str, known: Collection[str]) -> str:
    """Say which of the known arguments is meant by one that is not known."""
    if name in _OTHER_NAMES and "lambda_abs" in known:
        return f": the {name} of other clips is lambda_abs here"
    return suggestion(name, known, similarity=0.55)
