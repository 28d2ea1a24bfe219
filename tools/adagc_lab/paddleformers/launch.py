# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a recipe in PaddleFormers, whose Trainers then clip as it says."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle.distributed as dist

from adagc_lab.clips import make_clip
from adagc_lab.paddleformers.recipe import (
    CLIP_OPTIONS,
    ERNIE,
    clip_section,
    load_recipe,
)
from adagc_lab.paddleformers.units import check_units
from adagc_lab.storage import check_directory
from paddle_adagc.integrations.clipping import Options, attach
from paddle_adagc.run.process import after_init


def run_recipe(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> None:
    """Pretrain as the recipe says; every process of the run calls this.

    Without ``resume_from_checkpoint`` a run of ERNIE resumes from the newest
    complete checkpoint in ``output_dir``, which all processes must see. In
    stage PT PaddleFormers takes the newest one, even if its save was killed.
    """
    # Products in full float32, as under PaddleFormers' own command.
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    recipe = load_recipe(path, overrides)
    check_directory("output_dir", recipe["output_dir"])
    check_units(recipe)
    section, options = take_clip(recipe)
    make_clip(**section)  # mistakes before anything else
    is_ernie = recipe["stage"] == ERNIE
    if is_ernie and not recipe.get("resume_from_checkpoint"):
        recipe["resume_from_checkpoint"] = last_checkpoint(
            Path(recipe["output_dir"]), dist.get_world_size()
        )
    try:
        from paddleformers.cli.train.tuner import run_tuner
        from paddleformers.trainer.trainer import Trainer

        if is_ernie:
            from paddleformers.cli.train.ernie_pretrain import workflow

            from adagc_lab.paddleformers import balance

            workflow.MoECorrectionBiasAdjustCallback = (
                balance.CorrectionBiasCallback
            )
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error}: the recipe needs a GPU build of Paddle, and "
            "PaddleFormers: install '.[formers]' in an environment of its own, "
            "without '.[nlp]'. Without a GPU, in an environment with '.[nlp]', "
            f"`python tools/pretrain.py {path} --check` validates the recipe"
        ) from error
    after_init(Trainer, lambda trainer: clip_trainer(trainer, section, options))
    try:
        run_tuner(recipe)
    except (TypeError, ValueError):  # of which the command prints the message
        traceback.print_exc()
        raise


def take_clip(recipe: dict[str, Any]) -> tuple[dict[str, Any], Options]:
    """Take a recipe's keys ``clip`` and ``units`` out of it."""
    section, clip = clip_section(recipe), recipe.pop("clip")
    given = {name: clip[name] for name in CLIP_OPTIONS if name in clip}
    return section, Options(units=recipe.pop("units", None), **given)


def clip_trainer(
    trainer: Any, section: dict[str, Any], options: Options
) -> None:
    """Let a Trainer clip; GlobalGC is the Trainer's own, with our bound."""
    clip: Any = make_clip(**section)
    if section["name"] == "global_norm":
        if "lambda_abs" in section or not trainer.args.max_grad_norm:
            trainer.args.max_grad_norm = clip.clip_norm
        clip = None
    attach(trainer, clip, options)


def last_checkpoint(output_dir: Path, world_size: int) -> str | None:
    """Return the newest checkpoint that every process finished, if any."""
    found = {
        int(match[1]): path
        for path in output_dir.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    for _, path in sorted(found.items(), reverse=True):
        if len([*path.glob("saved_signal_*")]) == world_size:
            return str(path)
    if found:
        raise ValueError(
            f"none of the checkpoints in {output_dir} was finished by "
            f"{world_size} processes: give resume_from_checkpoint, or another "
            "output_dir"
        )
    return None
