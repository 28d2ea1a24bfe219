# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Values of single tensors, chosen by patterns of their keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.checks import suggestion

Checks = Mapping[str, Callable[[str, Any], float]]
"""Argument -> function of name and value that returns the value, or raises."""


class Overrides:
    """Says which values are a tensor's own.

    A pattern is searched anywhere in the key (:func:`re.search`). No key may
    match two patterns: their order then never matters, in no config that is
    merged from several files, and in no comparison of two configs.

    Args:
        overrides: Pattern -> values by argument; None: not clipped.
        checks: Of the arguments that may differ between tensors.

    Raises:
        TypeError: ``overrides`` is no dict of dicts, or a value is no number.
        ValueError: A pattern is no regular expression; an argument is unknown,
            or its value out of range.
    """

    def __init__(
        self,
        overrides: Mapping[str, Mapping[str, float] | None],
        checks: Checks,
    ) -> None:
        if not isinstance(overrides, Mapping):
            raise TypeError(
                "overrides must be a dict of pattern -> values, got "
                f"{overrides!r}"
            )
        self.settings: dict[str, dict[str, float] | None] = {
            pattern: _checked(pattern, values, checks)
            for pattern, values in overrides.items()
        }
        self.leaves_out_any = None in self.settings.values()
        self.names = {n for own in self.settings.values() for n in own or ()}
        self._patterns: dict[str, str | None] = {}  # by key
        self._keys: list[str] = []  # that the vectors are about
        self._vectors: dict[str, Tensor] = {}

    def leaves_out(self, key: str) -> bool:
        """Whether the tensor is not clipped."""
        pattern = self._pattern(key)
        return pattern is not None and self.settings[pattern] is None

    def vectors(
        self, keys: Sequence[str], defaults: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Return the arguments that some tensor overrides, all tensors' values.

        float64 ``[num_tensors]``, made when the tensors change, and never read
        back.
        """
        if self._keys != keys:
            own = [self.settings.get(self._pattern(key) or "") for key in keys]
            self._vectors = {
                name: paddle.to_tensor(
                    np.array([(v or defaults).get(name, default) for v in own])
                )
                for name, default in defaults.items()
                if name in self.names
            }
            self._keys = list(keys)
        return self._vectors

    def num_tensors(self, keys: Iterable[str]) -> dict[str, int]:
        """Return how many of these tensors match each pattern."""
        found = [self._pattern(key) for key in keys]
        return {pattern: found.count(pattern) for pattern in self.settings}

    def refuse_unused(
        self, keys: Sequence[str], any_rank: Callable[[bool], bool] = bool
    ) -> None:
        """Refuse a pattern of no tensor, nor of one that was asked about.

        ``any_rank`` tells whether a flag is set on any rank.
        """
        known = self.num_tensors({*keys, *self._patterns})
        for pattern, number in known.items():
            if not any_rank(number > 0):
                first = ", ".join(map(repr, keys[:3]))
                raise ValueError(
                    f"overrides: {pattern!r} matches no tensor; keys are "
                    f"{first}, ... (after bind(model) the model's names)"
                )

    def _pattern(self, key: str) -> str | None:
        """Return the pattern that the key matches; refuse two."""
        if key not in self._patterns:
            found = [p for p in self.settings if re.search(p, key)]
            if len(found) > 1:
                raise ValueError(
                    f"overrides: {key!r} matches both {found[0]!r} and "
                    f"{found[1]!r}: make the patterns narrower"
                )
            self._patterns[key] = found[0] if found else None
        return self._patterns[key]


def _checked(
    pattern: Any, values: Any, checks: Checks
) -> dict[str, float] | None:
    where = f"overrides[{pattern!r}]"
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"{where}: the key is no regular expression: {error}"
        ) from error
    if values is None:
        return None
    if not isinstance(values, Mapping) or not values:
        raise TypeError(
            f"{where} must be None or a dict of {', '.join(checks)}, got "
            f"{values!r}"
        )
    for name in values:
        if name not in checks:
            raise ValueError(
                f"{where} takes {', '.join(checks)}, not {name!r}"
                f"{suggestion(name, checks)}"
            )
    return {
        name: checks[name](f"{name} of {where}", value)
        for name, value in values.items()
    }
