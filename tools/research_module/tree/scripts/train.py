# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train as ``paddlefleet-cli train CONFIG.yaml`` does, with AdaGC.

    python -m paddle.distributed.launch scripts/train.py CONFIG.yaml

The YAML file is PaddleFleet's, and has a section ``clip``: arguments of
``ClipGradByAdaGC``, and ``missing_state``, ``new_tensors`` and ``units`` of
``ClippingMixin``. Written from PaddleFleet's public sources; not run with it.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import yaml

SFT = ("sft", "SFTTrainer")
TRAINERS = {
    **{"PT": SFT, "SFT": SFT, "VL-PT": SFT, "VL-SFT": SFT},
    "ernie_pretrain": ("ernie_pretrain", "PretrainingTrainer"),
}
"""``stage`` of a config -> its folder in ``paddlefleet.cli.train``, and the
name by which the workflow there calls its Trainer."""

OF_MIXIN = ("missing_state", "new_tensors", "units")
ENVIRONMENT = {
    "FLAGS_set_to_1d": "False",
    "NVIDIA_TF32_OVERRIDE": "0",
    "FLAGS_dataloader_use_file_descriptor": "False",
}
"""What ``paddlefleet-cli`` sets where it is not set."""


def main(path: str) -> None:
    """Train with a config."""
    config = yaml.safe_load(Path(path).read_text("utf-8"))
    section = config.pop("clip", None)
    if not isinstance(section, dict) or config.get("stage") not in TRAINERS:
        raise SystemExit(
            f"{path} needs a section 'clip' and a stage of {[*TRAINERS]}; it "
            f"has clip: {section!r} and stage: {config.get('stage')!r}"
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Paddle reads the environment when it is imported.
    import paddle

    folder, name = TRAINERS[config["stage"]]
    workflow = importlib.import_module(
        f"paddlefleet.cli.train.{folder}.workflow"
    )
    setattr(workflow, name, with_clip(getattr(workflow, name), section))
    tuner = importlib.import_module("paddlefleet.cli.train.tuner")
    try:
        tuner.run_tuner(config)
    finally:
        if paddle.distributed.is_initialized():
            paddle.distributed.destroy_process_group()


def with_clip(trainer: type, section: dict[str, Any]) -> type:
    """Return a Trainer's class that clips as the section says."""
    from paddle_adagc import ClipGradByAdaGC
    from paddle_adagc.integrations.paddlefleet import ClippingMixin

    of_mixin = {k: section[k] for k in OF_MIXIN if k in section}
    of_clip = {k: v for k, v in section.items() if k not in OF_MIXIN}

    class ClippingTrainer(ClippingMixin, trainer):
        """The workflow's Trainer, with AdaGC."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            clip = ClipGradByAdaGC(**of_clip)
            super().__init__(*args, clip=clip, **of_mixin, **kwargs)

    return ClippingTrainer


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
