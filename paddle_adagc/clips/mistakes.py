# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the clip's arguments, and the steps that follow, should not be."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from paddle_adagc.paddle_internals import Caller, has_moments

if TYPE_CHECKING:
    from paddle_adagc.clips.adagc import ClipGradByAdaGC
    from paddle_adagc.clips.progress import Progress
    from paddle_adagc.clips.step import Pairs


def warn_of_shrinking(clip: ClipGradByAdaGC) -> None:
    """Warn of a factor with which no gamma can grow."""
    lowest = clip.overrides.lowest("lambda_rel", clip.lambda_rel)
    if clip.init == "warmup_min" and lowest <= 1:
        warnings.warn(
            f"lambda_rel={lowest}: gamma can only shrink, so gradients shrink, "
            "too; the paper's value is 1.04",
            stacklevel=3,
        )


def refuse_shared_memory(pairs: Pairs) -> NoReturn:
    """Refuse gradients of which two have one memory: it is scaled twice."""
    names: dict[int, list[str]] = {}
    for parameter, gradient in pairs:
        if gradient is None or not gradient._is_initialized():
            continue
        if gradient.size:
            names.setdefault(gradient.data_ptr(), []).append(parameter.name)
    shared = next((x for x in names.values() if len(x) > 1), ["two parameters"])
    raise ValueError(
        f"{' and '.join(shared)} have the same memory as their gradient, which "
        "would be clipped twice: let the backward() of the PyLayer return "
        "clone() for one of them"
    )


def warn_of_a_missing_state(progress: Progress, caller: Caller | None) -> None:
    """Warn if the run was resumed, and this clip was not.

    Of another group than the first the optimizer may have made moments in this
    very step.
    """
    if progress.is_started_anew or caller is None or caller.group:
        return
    if not has_moments(caller.optimizer):
        return
    warnings.warn(
        "this ClipGradByAdaGC makes its first step, and its optimizer has "
        "made some: in a resumed run load the clip's state, too "
        "(clip.set_state_dict), or it starts anew. If that is what you want, "
        "clip.restart_warmup() says so",
        stacklevel=9,
    )


def warn_of_low_gammas(clip: ClipGradByAdaGC, progress: Progress) -> None:
    """Warn of tensors whose norm is far above the warm-up's smallest.

    Looks at the first step after the warm-up, whose parameter groups have all
    been here; on each rank for itself. Waits for the device, this once.
    """
    if clip.init == "warmup_ema" or not clip.t_start:
        return
    rows = progress.snapshot().rows()
    norm, gamma, h = (rows.columns[x] for x in ("norm", "gamma", "h"))
    low = rows.choose(np.isfinite(norm) & (10 * gamma < norm) & (h < 1))
    if not low.keys:
        return
    names = ", ".join(low.keys[:3]) + ", ..." * (len(low.keys) > 3)
    h = low.columns["h"]
    growth = max((1 - clip.beta) * (clip.lambda_rel - 1), 0)
    warnings.warn(
        f"{len(low.keys)} of {len(rows.keys)} tensors ({names}) leave the "
        "warm-up with gamma below a tenth of their norm: step "
        f"{progress.steps.num_steps} multiplied their gradients by h of "
        f"{h.min():.2g} to {h.max():.2g}, and gamma grows by at most "
        f"{growth:.2%} a step. gamma is the smallest norm of the warm-up; "
        'init="warmup_ema" starts it where the norms are',
        stacklevel=9,
    )
