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
