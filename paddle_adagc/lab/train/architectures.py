# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The task of every model architecture that a run can name."""

from __future__ import annotations

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.image_text import ImageTextTask
from paddle_adagc.lab.train.language import LanguageTask
from paddle_adagc.lab.train.task import PretrainTask

ARCHITECTURES: dict[str, type[PretrainTask]] = {
    "decoder": LanguageTask,
    "clip": ImageTextTask,
}
"""Task by ``model.architecture``."""


def make_task(config: RunConfig) -> PretrainTask:
    """Make the task that ``model.architecture`` names, by default a decoder's.

    Raises:
        ValueError: The architecture is unknown, or see :class:`PretrainTask`.
    """
    name = check_choice(
        "model.architecture",
        config.model.get("architecture", "decoder"),
        ARCHITECTURES,
    )
    return ARCHITECTURES[name](config)
