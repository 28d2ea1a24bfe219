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
"""Arguments of the optimizers that configs check before Paddle is imported."""

from __future__ import annotations

from typing import Literal

Form = Literal["original", "paper"]
"""Of AGC and Clippy, see :mod:`paddle_adagc.optimizers.update_clips`."""

Scaling = Literal["spectral", "rms"]
"""Of :class:`paddle_adagc.optimizers.muon.Muon`."""


def check_clip_start(clip_start: int, reset_interval: int) -> None:
    """Refuse a schedule in which nothing would ever be clipped.

    Raises:
        ValueError: ``clip_start`` is not below ``reset_interval``.
    """
    if clip_start >= reset_interval:
        raise ValueError(
            f"clip_start={clip_start} must be below "
            f"reset_interval={reset_interval}: nothing would be clipped"
        )
