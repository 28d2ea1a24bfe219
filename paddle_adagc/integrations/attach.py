# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the mixin and the callbacks do to a Trainer, its log and its model."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.stateful import NewTensors
from paddle_adagc.integrations.checkpoints import MISSING_STATES, begin_run
from paddle_adagc.integrations.logs import warm_up_end
from paddle_adagc.integrations.model_units import ModelUnits, describe_tensors
from paddle_adagc.integrations.no_record import NoRecord, StopOn, Where
from paddle_adagc.parallel.layout import unwrap
from paddle_adagc.parallel.units import Declared

if TYPE_CHECKING:
    from paddlenlp.trainer import TrainerCallback
else:
    TrainerCallback = object

_DEFAULT_MAX_GRAD_NORM = 1.0  # of TrainingArguments


class Callback(TrainerCallback):
    """Does nothing at any event; they differ by Trainer."""

    clips = False
    """It puts a clip into the Trainer."""

    def __getattr__(self, event: str) -> Callable[..., None]:
        if not event.startswith("on_"):
            raise AttributeError(event)
        return lambda *args, **kwargs: None


def make_record(
    record: Where = True,
    shadow: ClipGradBase | bool | None = None,
    skip_above: float | None = None,
    stop_on: StopOn = None,
) -> NoRecord:
    """Return what records a Trainer's run.

    Without the package's recorder the default records nothing.

    Raises:
        ImportError: An option asks for a record, and the recorder is missing.
        TypeError, ValueError: See :class:`.TrainerRecord`.
    """
    try:
        from paddle_adagc.integrations.recording import TrainerRecord
    except ModuleNotFoundError:
        if not isinstance(record, bool) or shadow or skip_above or stop_on:
            raise
        return NoRecord()
    return TrainerRecord(record, shadow, skip_above, stop_on)


def begin(
    clip: ClipGradBase | None,
    recording: NoRecord,
    args: Any,
    state: Any,
    *,
    model: Any,
    optimizer: Any,
    **others: Any,
) -> None:
    """Begin to record; name the run; say how long the warm-up takes."""
    recording.begin(args, state, model, optimizer)
    begin_run(args, state)
    end = warm_up_end(clip, state)
    last = getattr(state, "max_steps", 0) or args.max_steps
    if end and 0 < last <= end:
        warnings.warn(
            f"t_start={getattr(clip, 't_start', 0)}, and max_steps={last}: "
            "training ends before the clip's warm-up is over, at step "
            f"{end}; {last - state.global_step} steps are left",
            stacklevel=4,
        )
    elif end:
        _logger_of(args).info(f"paddle_adagc: warm-up until step {end}")


def log_numbers(
    clip: ClipGradBase | None, recording: NoRecord, state: Any
) -> dict[str, Any]:
    """Return what a log has beside :func:`.clip_summary`; all ranks call it."""
    end = warm_up_end(clip, state)
    return recording.numbers() | ({"warmup_until": end} if end else {})


def check_choices(
    clip: Any, missing_state: str, new_tensors: str = "raise"
) -> None:
    """Refuse what is no gradient clip, or no such choice."""
    if not isinstance(clip, ClipGradBase):
        raise TypeError(
            f"clip is {clip!r}: give a clip, such as ClipGradByAdaGC()"
        )
    check_choice("missing_state", missing_state, MISSING_STATES)
    check_choice("new_tensors", new_tensors, get_args(NewTensors))


def take_over_clipping(args: Any, clip: ClipGradBase) -> None:
    """Set ``max_grad_norm`` to 0, and warn of arguments that do not fit.

    PaddleFormers takes any other ``max_grad_norm`` for its own clip's, and its
    ``ernie_pretrain`` copies a clip's ``stat`` into the logs.
    """
    clip.stat = {}
    is_flex = getattr(args, "save_checkpoint_format", "") == "flex_checkpoint"
    warned = {
        f"max_grad_norm={args.max_grad_norm} is not used: {clip!r} clips in "
        "its place (lambda_abs is the global norm of AdaGC's warm-up)": (
            args.max_grad_norm not in (0, _DEFAULT_MAX_GRAD_NORM)
        ),
        "PaddleFormers cannot load a flex_checkpoint on one process: to "
        "resume this run set save_checkpoint_format and "
        "load_checkpoint_format to 'unified_checkpoint'": (
            is_flex
            and args.save_strategy.value != "no"
            and dist.get_world_size() == 1
        ),
    }
    for message, applies in warned.items():
        if applies:
            warnings.warn(message, stacklevel=4)
    if args.max_grad_norm:
        _logger_of(args).info(
            f"paddle_adagc: max_grad_norm {args.max_grad_norm} -> 0, as the "
            "clip clips; another Trainer needs arguments of its own"
        )
    args.max_grad_norm = 0.0


def bind_clip(
    clip: TensorScalingClip,
    model: Any,
    units: Declared | None,
    args: Any,
) -> None:
    """Bind a clip to a Trainer's model; say which tensors it has.

    Without ``units`` they are those that the model names itself
    (:class:`.ModelUnits`), under every optimizer.
    """
    config = getattr(unwrap(model), "config", None)
    target = getattr(config, "use_accuracy_compatible", None)
    if target:
        warnings.warn(
            f"use_accuracy_compatible={target!r} lets the Trainer clip bit by "
            f"bit as another framework does: {clip!r} clips in its place",
            stacklevel=4,
        )
    interleaves = bool(getattr(args, "using_sonic_moe", False))
    found = ModelUnits(unwrap(model), interleaves)
    clip.bind(model, found if units is None else units)
    logger = _logger_of(args)
    for key, why in found.unknown.items():
        logger.warning(f"paddle_adagc: {key} has one norm: {why}")
    logger.info(f"paddle_adagc: {describe_tensors(unwrap(model))}")


def _logger_of(args: Any) -> Any:
    """Return the logger of the Trainer's library."""
    library = type(args).__module__.partition(".")[0]
    module = sys.modules.get(f"{library}.utils.log")
    return getattr(module, "logger", logging.getLogger(__name__))
