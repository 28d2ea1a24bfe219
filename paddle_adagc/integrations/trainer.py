# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a Trainer needs to clip with a clip of this package."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.state import STATE_FILE, load_state, save_state

_QUANTITIES = ("norm", "gamma", "h")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


def add_histograms(
    callbacks: Iterable[Any], summary: Mapping[str, Any], step: int
) -> None:
    """Write histograms of norm, gamma and h over the layers.

    Tensors whose names differ in numbers alone are one group: the tag
    ``clip_norm/layers.N.mlp.up.weight`` holds a value per layer, of an MoE one
    per layer and expert. A tensor that is a group alone gets a curve instead,
    since VisualDL shows no histogram of one value. Values that are not finite
    are left out.

    Of a Trainer's callbacks the writers for VisualDL, TensorBoard and Weights &
    Biases are used. The h of the summary's ``lowest_h`` stand in the Trainer's
    log already.
    """
    bars, points = _bars_and_points(summary.get("tensors", {}))
    for key in summary.get("lowest_h", ()):
        points.pop(f"train/clip_h/{key}", None)
    for callback in callbacks if bars or points else ():
        for name in ("vdl_writer", "tb_writer"):
            writer = getattr(callback, name, None)
            if writer is not None:
                for tag, values in bars.items():
                    writer.add_histogram(tag, values, step)
                for tag, value in points.items():
                    writer.add_scalar(tag, value, step)
        wandb = getattr(callback, "_wandb", None)
        if wandb is not None:
            shown = {tag: wandb.Histogram(v) for tag, v in bars.items()}
            wandb.log({**shown, **points, "train/global_step": step})


def _bars_and_points(
    tensors: Mapping[str, Mapping[str, float]],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return, by tag, the values of groups and those of single tensors."""
    groups: dict[str, list[str]] = {}
    for key in tensors:
        groups.setdefault(_NUMBER.sub("N", key), []).append(key)
    bars: dict[str, np.ndarray] = {}
    points: dict[str, float] = {}
    for group, keys in groups.items():
        for name in _QUANTITIES:
            values = [tensors[key].get(name, math.nan) for key in keys]
            finite = [value for value in values if math.isfinite(value)]
            if len(keys) > 1 and finite:
                bars[f"train/clip_{name}/{group}"] = np.array(finite)
            elif finite:
                points[f"train/clip_{name}/{keys[0]}"] = finite[0]
    return bars, points


MissingState = Literal["raise", "start"]

_DEFAULT_MAX_GRAD_NORM = 1.0  # of TrainingArguments


def check_missing_state(value: MissingState) -> None:
    """Check the argument ``missing_state``."""
    if value not in get_args(MissingState):
        raise ValueError(
            f"missing_state={value!r} is neither 'raise' nor 'start'"
        )


def take_over_clipping(args: Any, clip: ClipGradBase) -> None:
    """Set ``max_grad_norm`` to 0, and warn of arguments that do not fit.

    PaddleFormers takes any other ``max_grad_norm`` for its own clip's.
    """
    if args.max_grad_norm not in (0, _DEFAULT_MAX_GRAD_NORM):
        warnings.warn(
            f"max_grad_norm={args.max_grad_norm} is not used: {clip} clips in "
            "its place (lambda_abs is the global norm of AdaGC's warm-up)",
            stacklevel=4,
        )
    args.max_grad_norm = 0.0
    t_start = getattr(clip, "t_start", 0)
    if 0 < args.max_steps <= t_start:
        warnings.warn(
            f"t_start={t_start}, and max_steps={args.max_steps}: training ends "
            "before the clip's warm-up is over",
            stacklevel=4,
        )


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that fleet's wrappers hold."""
    while hasattr(optimizer, "_inner_opt"):
        optimizer = optimizer._inner_opt
    return optimizer


def put_into_optimizer(optimizer: Any, clip: ClipGradBase) -> None:
    """Let an optimizer clip with ``clip``; fleet's wrappers are looked into."""
    optimizer = innermost(optimizer)
    optimizer._grad_clip = clip
    for group in optimizer._param_groups:
        if isinstance(group, dict):
            group["grad_clip"] = clip


def load_clip(
    clip: ClipGradBase,
    checkpoint: str | os.PathLike[str],
    missing_state: MissingState,
) -> None:
    """Resume a clip of this package from a checkpoint; others have no state.

    Every rank has to call it. The file that one rank finds serves all: a
    cluster without a shared disk has it on one node alone.
    """
    if not isinstance(clip, TensorScalingClip):
        return
    try:
        state = _state_of_any_rank(checkpoint)
    except FileNotFoundError as error:
        if missing_state == "start":
            return
        raise FileNotFoundError(
            f"{error} To switch a run to this clip, which then starts with "
            "its warm-up, give missing_state='start'"
        ) from None
    clip.set_state_dict(state)


def _state_of_any_rank(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return load_state(checkpoint)
    mine: dict[str, Any] | Exception
    try:
        mine = load_state(checkpoint)
    except (FileNotFoundError, ValueError) as error:
        mine = error
    answers: list[dict[str, Any] | Exception] = []
    dist.all_gather_object(answers, mine)
    for rank, answer in enumerate(answers):
        if isinstance(answer, ValueError):
            raise ValueError(f"rank {rank}: {answer}")
    states = [answer for answer in answers if isinstance(answer, dict)]
    if not states:
        raise FileNotFoundError(str(answers[0]))
    if any(state != states[0] for state in states):
        raise ValueError(
            f"ranks find different {STATE_FILE} in {checkpoint}: copy that of "
            "one rank to the others, or remove those of another run"
        )
    return states[0]


def save_clip(clip: ClipGradBase, output_dir: str, step: int) -> None:
    """Save the whole model's state of a clip; every rank has to call it."""
    if isinstance(clip, TensorScalingClip):
        state = clip.full_state_dict()
        if dist.get_rank() == 0:
            save_state(state, Path(output_dir) / f"checkpoint-{step}")


def clip_summary(clip: ClipGradBase) -> dict[str, Any]:
    """Summarise the last step, tensors included; every rank has to call it.

    A clip without a summary has an empty one.
    """
    if not isinstance(clip, TensorScalingClip):
        return {}
    summary = clip.summary(tensors=True)
    del summary["step"]
    return summary


def clip_logs(summary: dict[str, Any]) -> dict[str, float]:
    """Name the numbers of a summary as they stand in a log."""
    numbers = {
        f"clip_{name}": value
        for name, value in summary.items()
        if name not in ("lowest_h", "tensors")
    }
    lowest = summary.get("lowest_h", {})
    return numbers | {f"clip_h/{key}": h for key, h in lowest.items()}
