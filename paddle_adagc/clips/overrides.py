# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Values of AdaGC's arguments for single tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.checks import matching_pattern
from paddle_adagc.clips.arguments import ByPattern, check_overrides


class Overrides:
    """Which tensors have other values, and which are not clipped."""

    def __init__(self, overrides: Any) -> None:
        self.by_pattern: ByPattern = check_overrides("overrides", overrides)
        self.names = {n for own in self.by_pattern.values() for n in own or ()}
        self.awaits_tensors = bool(self.by_pattern)  # is each pattern used?
        self._patterns: dict[str, str | None] = {}  # by key
        self._about: Any = None  # tensors and defaults of the vectors
        self._vectors: dict[str, Tensor] = {}

    @property
    def exempts(self) -> Callable[[str], bool] | None:
        """Whether the tensor of a key is not clipped; None: all are."""
        has_some = None in self.by_pattern.values()
        return self._leaves_out if has_some else None

    def _leaves_out(self, key: str) -> bool:
        return self.by_pattern.get(self._pattern(key) or "", {}) is None

    def lowest(self, name: str, default: float) -> float:
        """Return the least value that a tensor may have of an argument."""
        own = (values or {} for values in self.by_pattern.values())
        return min(default, *(v.get(name, default) for v in own), default)

    def vectors(
        self, keys: Sequence[str], defaults: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Return the vector of each argument that is overridden.

        As :mod:`.rule` takes it, ``[num_tensors]``. Made when the tensors or
        the defaults change, and never read back.
        """
        about = [*keys], dict(defaults)
        if self._about != about:
            own = [self.by_pattern.get(self._pattern(k) or "") for k in keys]
            self._vectors = {
                name: paddle.to_tensor(
                    np.array(
                        [(v or defaults).get(name, default) for v in own],
                        np.float32 if name == "lambda_rel" else np.float64,
                    )
                )
                for name, default in defaults.items()
                if name in self.names
            }
            self._about = about
        return self._vectors

    def meet(self, keys: Iterable[str]) -> None:
        """Forget other tensors; refuse one of these that two patterns match."""
        self._patterns = {}
        self.num_tensors(keys)

    def num_tensors(self, keys: Iterable[str]) -> dict[str, int]:
        """Return how many of these tensors match each pattern."""
        found = [self._pattern(key) for key in keys]
        return {pattern: found.count(pattern) for pattern in self.by_pattern}

    def refuse_unused(
        self,
        keys: Sequence[str],
        gather: Callable[[bool], list[bool]] = lambda mine: [mine],
    ) -> None:
        """Refuse a pattern that matches no tensor, of these and those before.

        ``gather`` gives all ranks' flags.
        """
        known = self.num_tensors({*keys, *self._patterns})
        for pattern in sorted(known):  # on all ranks in the same order
            if not any(gather(known[pattern] > 0)):
                first = ", ".join(map(repr, keys[:3]))
                raise ValueError(
                    f"overrides: {pattern!r} matches no tensor; keys are "
                    f"{first}, ... (after bind(model) the model's names)"
                )
        self.awaits_tensors = False

    def _pattern(self, key: str) -> str | None:
        """Return the pattern that the key matches; refuse two."""
        if key not in self._patterns:
            found = matching_pattern("overrides", self.by_pattern, key)
            self._patterns[key] = found
        return self._patterns[key]
