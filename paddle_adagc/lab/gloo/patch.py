# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One attribute of Paddle that the CPU backend replaces or adds."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """A replacement, where it goes, and why Paddle 3.3.1 needs it."""

    owner: Any
    """Module or class that carries the attribute."""
    name: str
    """Name of the attribute."""
    replacement: Any
    """What is put there."""
    reason: str
    """Which kernel or method is missing or wrong on CPU."""

    def apply(self) -> None:
        """Put the replacement in place."""
        setattr(self.owner, self.name, self.replacement)
