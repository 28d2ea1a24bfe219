# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a recipe in PaddleFormers' ``ernie_pretrain`` with this clip."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import paddle
import paddle.distributed as dist
from paddle.nn import ClipGradByGlobalNorm
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_directory
from paddle_adagc.lab.extensions.robust import make_clip
from paddle_adagc.lab.paddleformers.recipe import load_recipe
from paddle_adagc.lab.paddleformers.units import recipe_units
from paddle_adagc.parallel.units import Declared


def run_recipe(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> None:
    """Pretrain as the recipe says; every process of the run calls this.

    Without ``resume_from_checkpoint`` the run resumes from the newest complete
    checkpoint in ``output_dir``, which all processes must see.

    Raises:
        FileNotFoundError: See :func:`load_recipe`.
        ValueError: See :func:`load_recipe`; PaddleFormers is missing, or does
            not know a key; nothing can be written to ``output_dir``; or the
            checkpoints there are of another number of processes.
    """
    # Products in full float32, as under PaddleFormers' own command line.
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    recipe = load_recipe(path, overrides)
    check_directory("output_dir", recipe["output_dir"])
    clip = make_clip(**recipe["clip"])
    units = recipe_units(recipe)
    settings = formers_settings(recipe, clip)
    if not settings.get("resume_from_checkpoint"):
        settings["resume_from_checkpoint"] = last_checkpoint(
            Path(recipe["output_dir"]), dist.get_world_size()
        )
    try:
        from paddleformers.cli.train.ernie_pretrain import workflow
        from paddleformers.cli.train.tuner import run_tuner
    except ModuleNotFoundError as error:
        raise ValueError(_why_not_importable(path, error)) from error
    with _rebound(workflow, clip, units):
        run_tuner(settings)


def _why_not_importable(
    path: str | os.PathLike[str], error: ModuleNotFoundError
) -> str:
    check = (
        "Without a GPU, in an environment with '.[nlp]', "
        f"`python tools/pretrain.py {path} --check` validates the recipe"
    )
    if importlib.util.find_spec("paddleformers") is None:
        return (
            f"{error}: the recipe needs PaddleFormers on a GPU build of "
            "Paddle; install '.[formers]' in an environment of its own, "
            f"without '.[nlp]'. {check}"
        )
    if not paddle.device.is_compiled_with_cuda():
        return f"{error}: PaddleFormers needs a GPU build of Paddle. {check}"
    return str(error)


def formers_settings(
    recipe: Mapping[str, Any], clip: ClipGradBase
) -> dict[str, Any]:
    """Convert a recipe to PaddleFormers' settings.

    PaddleFormers itself clips by the global norm over hybrid-parallel ranks:
    ``max_grad_norm`` is its threshold, and 0 under any other clip.
    """
    settings = {
        key: value
        for key, value in recipe.items()
        if key not in ("clip", "units")
    }
    is_global = isinstance(clip, ClipGradByGlobalNorm)
    settings["max_grad_norm"] = clip.clip_norm if is_global else 0.0
    return settings


def last_checkpoint(output_dir: Path, world_size: int) -> str | None:
    """Return the newest checkpoint that every process finished, if any.

    Raises:
        ValueError: There are checkpoints, and none is complete for this number
            of processes.
    """
    found = {
        int(match[1]): path
        for path in output_dir.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    }
    for step in sorted(found, reverse=True):
        if len([*found[step].glob("saved_signal_*")]) == world_size:
            return str(found[step])
    if found:
        raise ValueError(
            f"none of the checkpoints in {output_dir} was finished by "
            f"{world_size} processes: give resume_from_checkpoint, or another "
            "output_dir"
        )
    return None


def _rebound(
    workflow: Any, clip: ClipGradBase, units: Declared | None
) -> contextlib.AbstractContextManager[Any]:
    """Make ``ernie_pretrain`` use :class:`ClippingTrainer` and balance experts.

    Under GlobalGC it keeps PaddleFormers' trainer.
    """
    from paddle_adagc.lab.paddleformers import trainer

    replacements: dict[str, Any] = {
        "MoECorrectionBiasAdjustCallback": trainer.CorrectionBiasCallback
    }
    if not isinstance(clip, ClipGradByGlobalNorm):
        replacements["PretrainingTrainer"] = functools.partial(
            trainer.ClippingTrainer, clip=clip, units=units
        )
    return mock.patch.multiple(workflow, **replacements)
