# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Trainer's arguments and model: what a clip takes over from them."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.integrations.model_units import ModelUnits, describe_tensors
from paddle_adagc.parallel.layout import unwrap
from paddle_adagc.parallel.units import Declared

CLEARS = "adaptive_norm_force_clear_state"
"""ERNIE's argument: start without the state of a clip."""

_WITHOUT_EFFECT = {
    "adaptive_norm_shard_clip": "each tensor has one norm, of all its parts",
    "adaptive_norm_enable_record": "--record is adagc-run's",
    "adaptive_norm_enable_record_clip_history": "--record is adagc-run's",
    "adaptive_norm_verbose": "the logs have clip_... numbers",
}


def of_adaptive_norm(args: Any) -> dict[str, tuple[Any, str]]:
    """Return what ERNIE's ``adaptive_norm_...`` say about the clip.

    Name of our argument -> value and origin; nothing where
    ``adaptive_norm_clip`` is not on. What has no field of its own, or an absent
    one, is as in ERNIE's ``ClipGradByAdaptiveNorm``.
    """
    if not getattr(args, "adaptive_norm_clip", False):
        return {}
    found: dict[str, tuple[Any, str]] = {}
    for name, field, usual in (
        ("lambda_rel", "adaptive_norm_clip_ratio", 1.03),
        ("beta", "", 0.98),
        ("lambda_abs", "", 1.0),
        ("t_start", "adaptive_norm_start_clip_steps", 100),
    ):
        value, where = getattr(args, field, None), field
        if value is None:
            value, where = usual, "ERNIE's adaptive_norm_clip"
        if name == "t_start":  # it warms up while steps <= start, from 0
            value, where = value + 1, f"{where}, step {value} included"
        found[name] = value, where
    return found


def without_effect(args: Any) -> list[str]:
    """Name ERNIE's arguments that are set and that our clip does not follow."""
    return [
        f"{name} has no effect: {why}"
        for name, why in _WITHOUT_EFFECT.items()
        if getattr(args, name, False)
    ]


@contextlib.contextmanager
def without_threshold(args: Any, clip: ClipGradBase | None) -> Iterator[None]:
    """Keep ``max_grad_norm`` at 0: else PaddleFormers expects its own clip.

    Afterwards it is the caller's again, and another Trainer's.
    """
    norm = args.max_grad_norm
    args.max_grad_norm = norm if clip is None else 0.0
    try:
        yield
    finally:
        args.max_grad_norm = norm


def check_clipping(args: Any, clip: ClipGradBase) -> None:
    """Warn of arguments that do not fit a clip.

    The ``ernie_pretrain`` of PaddleFormers copies its ``stat`` into the logs.

    Raises:
        ValueError: The Trainer changes the model within ``train()``.
    """
    if isinstance(clip, ClipGradByAdaGC):
        _refuse(args)
    clip.stat = {}
    is_flex = getattr(args, "save_checkpoint_format", "") == "flex_checkpoint"
    norm = args.max_grad_norm
    usual = (0, None, 1.0, getattr(clip, "lambda_abs", None))  # 1.0: default
    if norm not in usual:
        warnings.warn(
            f"max_grad_norm={norm} is not used: {clip!r} clips in its place "
            "(lambda_abs is the global norm of AdaGC's warm-up)",
            stacklevel=4,
        )
    is_saved = is_flex and args.save_strategy.value != "no"
    if is_saved and dist.get_world_size() == 1:
        warnings.warn(
            "PaddleFormers cannot load a flex_checkpoint on one process: to "
            "resume this run set save_checkpoint_format and "
            "load_checkpoint_format to 'unified_checkpoint'",
            stacklevel=4,
        )


def _refuse(args: Any) -> None:
    if getattr(args, "enable_auto_parallel", False):
        raise ValueError(
            "enable_auto_parallel spreads the model over its ranks within "
            "train(), after the clip has read it: use fleet's parallelism, "
            "or a plain loop with shard_optimizer"
        )
    sharding = getattr(args, "sharding", ())
    kinds = {getattr(kind, "value", kind) for kind in sharding}
    for kind in kinds & {"fsdp", "stage3", "offload"}:
        raise ValueError(
            f"sharding={kind} joins or slices tensors within train(), after "
            "the clip has read them: use sharding=stage1"
        )


def bind_clip(
    clip: ClipGradByAdaGC, model: Any, units: Declared | None, args: Any
) -> None:
    """Bind a clip to a Trainer's model; say which tensors it has.

    Without ``units`` they are those that the model names itself
    (:class:`.ModelUnits`), under every optimizer.
    """
    logger = logger_of(args)
    if units is None:
        units = units_of(model, args)
    clip.bind(model, units)
    for key, why in getattr(units, "unknown", {}).items():
        logger.warning(f"paddle_adagc: {key} has one norm: {why}")
    logger.info(f"paddle_adagc: {describe_tensors(unwrap(model))}")


def units_of(model: Any, args: Any) -> ModelUnits:
    """Return the units that a Trainer's model names itself."""
    interleaves = bool(getattr(args, "using_sonic_moe", False))
    return ModelUnits(unwrap(model), interleaves)


def logger_of(args: Any) -> Any:
    """Return the logger of the Trainer's library."""
    module = sys.modules.get(f"{library_of(args)}.utils.log")
    return getattr(module, "logger", logging.getLogger(__name__))


def library_of(args: Any) -> str:
    """Return the library of a Trainer's arguments, or of what they derive."""
    roots = (kind.__module__.partition(".")[0] for kind in type(args).__mro__)
    known = "paddlenlp", "paddleformers", "paddlefleet"
    return next((root for root in roots if root in known), "")
