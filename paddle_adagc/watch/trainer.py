# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The record of a run whose loop is not ours: it never ends the training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice, check_positive
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.optimizer import clip_of
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.watch.alarms import OnAlarm, warn
from paddle_adagc.watch.clips import check_shadow, default_shadow, is_adagc
from paddle_adagc.watch.losses import forget_losses
from paddle_adagc.watch.observe import parameters_of
from paddle_adagc.watch.recorder import Record

_OF_LAST_STEP = (
    *("global_grad_norm", "clipped_grad_norm", "clipped_fraction"),
    *("h_min", "h_median", "nonfinite", "shadow_clipped_fraction"),
    *("shadow_h_min", "shadow_h_median"),
)


def open_record(
    directory: str | os.PathLike[str],
    optimizer: Any,
    *,
    in_step: bool = False,
    **options: Any,
) -> Record | None:
    """Make a record that sees the losses; if it cannot be made, warn.

    Unless it is opened within a step, between its ``backward()`` and its
    update, what was differentiated before is of no step of it.
    """
    place = os.path.abspath(directory)
    try:
        record = Record(place, optimizer, **options)
    except Exception as error:  # the training goes on as without us
        warn(f"nothing is recorded in {place}: {error}")
        return None
    if not in_step:
        forget_losses()
    record.see_losses()
    return record


class TrainerRecord:
    """The record of a Trainer's run; every rank calls each method.

    Args:
        where: Folder of the record; True: ``record`` in the Trainer's
            ``output_dir``; False: no record.
        shadow: See :class:`.Record`, as for the others.

    Raises:
        TypeError, ValueError: A wrong argument, or the shadow cannot follow.
    """

    def __init__(
        self,
        where: bool | str | os.PathLike[str] = True,
        shadow: ClipGradBase | bool | None = None,
        skip_above: float | None = None,
        stop_on: Literal["nan"] | None = None,
        on_alarm: OnAlarm = None,
    ) -> None:
        if not isinstance(where, (bool, str, os.PathLike)):
            raise TypeError(f"record={where!r}: give True, False or a folder")
        if where is False and (skip_above or stop_on):
            raise ValueError(
                "skip_above and stop_on need the record: leave record=False out"
            )
        if skip_above is not None:
            check_positive("skip_above", skip_above)
        if stop_on is not None:
            check_choice("stop_on", stop_on, ("nan",))
        if shadow not in (None, True, False):
            check_shadow(shadow)
        self._where, self._shadow = where, shadow
        self._options: dict[str, Any] = {
            "skip_above": skip_above,
            "stop_on": stop_on,
            "on_alarm": on_alarm,
        }
        self.record: Record | None = None
        self._optimizer: Any = None

    def begin(
        self,
        args: Any,
        state: Any,
        model: Any,
        optimizer: Any,
        bind: Callable[[Any], None],
        load: Callable[[Any], None],
        trainer: Any = None,
    ) -> None:
        """Open the record where training begins, and resume its shadow.

        Beside a clip of this package, whose state the checkpoints hold, a
        shadow starts anew. ``bind`` binds a clip to the model; ``load`` loads
        its state from the checkpoint that the Trainer has loaded. The others
        are the Trainer's.
        """
        self.close()
        if self._where is False:
            return
        self._optimizer = optimizer
        acting, clip = clip_of(optimizer), self._shadow
        if clip in (None, True):
            clip = None if is_adagc(acting) else default_shadow(acting)
        if isinstance(clip, ClipGradByAdaGC) and (
            not clip._progress.tensors.is_bound
        ):
            bind(clip)
        where = self._where
        self.record = open_record(
            f"{args.output_dir}/record" if where is True else where,
            optimizer,
            model=model,
            shadow=clip,
            start=state.global_step or None,
            **self._options,
        )
        if self.record is None:
            return
        self.record.count_by(lambda: state.global_step)
        self.record.num_losses = _num_losses(trainer, args)
        if self.shadow and state.global_step and not is_adagc(acting):
            try:
                load(self.shadow)
            except Exception as error:
                warn(f"the shadow starts anew: {error}")
            self.record.forget_updates()

    @property
    def shadow(self) -> ClipGradByAdaGC | None:
        """The clip that follows, if there is one."""
        return self.record.shadow if self.record is not None else None

    def saved(self, clip: ClipGradBase | None) -> ClipGradBase | None:
        """Copy the steps so far; return the clip that a checkpoint saves."""
        if self.record is not None:
            self.record.flush()
        if is_adagc(clip):
            return clip
        # The shadow may have failed on one rank. Saving it takes all ranks.
        has_shadow = all(of_all_ranks(self.shadow is not None))
        return self.shadow if has_shadow else clip

    def step(self, control: Any) -> None:
        """Finish a step of the Trainer; end its training if that is asked."""
        if self.record is None:
            return
        self.record.step()
        reason = self.record.should_stop
        if reason and not control.should_training_stop:
            control.should_training_stop = True
            control.should_save = not self.is_ruined()
            left = "a checkpoint is saved"
            if not control.should_save:
                left = "weights are not finite either: nothing is saved"
            warn(f"training ends: {reason}; {left}")

    def is_ruined(self) -> bool:
        """Whether the run ends with weights that are not finite; waits.

        Every rank asks, and gets the same answer.
        """
        ends = self.record is not None and bool(self.record.should_stop)
        return ends and not _are_finite(parameters_of(self._optimizer))

    def refuses_to_save(self) -> bool:
        """Say so if a checkpoint would have such weights; every rank asks."""
        is_ruined = self.is_ruined()
        if is_ruined:
            warn("no checkpoint is saved: weights are not finite")
        return is_ruined

    def numbers(self) -> dict[str, Any]:
        """Return numbers for a log: the worst since the last one.

        Under a clip that is not ours also those of the last step. Rank 0 gets
        them.
        """
        if self.record is None:
            return {}
        self.record.flush()
        last, worst = self.record.latest(), self.record.worst()
        if self.shadow is None:
            return worst
        return {k: last[k] for k in _OF_LAST_STEP if k in last} | worst

    def leave(self, error: BaseException) -> None:
        """Write what this rank has, after an exception of the training."""
        if self.record is not None:
            self.record.leave(error)
            self.record = None

    def close(self) -> None:
        """Write what is left."""
        if self.record is not None:
            self.record.close()
            self.record = None


def _num_losses(trainer: Any, args: Any) -> int:
    """How many times a step's loss the sum of what it differentiates is.

    A Trainer that delays the scale of the loss divides the gradients later:
    PaddleNLP's if it is told to, PaddleFormers' from 1.1 on always.
    """
    delays = getattr(trainer, "_enable_delay_scale_loss", lambda: True)
    is_delayed = trainer is not None and delays()
    return getattr(args, "gradient_accumulation_steps", 1) if is_delayed else 1


def _are_finite(weights: Sequence[Tensor]) -> bool:
    """Whether weights are finite on all ranks, which all call this; waits.

    Sharding leaves parts that lie on other ranks without memory.
    """
    flags = [
        paddle.isfinite(weight).all()
        for weight in weights
        if weight._is_initialized()
    ]
    return all(of_all_ranks(not flags or bool(paddle.stack(flags).all())))
