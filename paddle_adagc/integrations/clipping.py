# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in one Trainer of PaddleNLP, PaddleFormers or PaddleFleet.

They descend from each other; what differs is asked of them. The clip stands
around six methods: by :class:`.ClippingMixin`, or on the object
(:func:`attach`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.progress import NewTensors
from paddle_adagc.integrations.arguments import (
    CLEARS,
    bind_clip,
    check_clipping,
    logger_of,
    units_of,
    without_threshold,
)
from paddle_adagc.integrations.checkpoints import (
    MissingState,
    load_clip,
    mark_step,
    name_run,
    newest_finished,
    place_clip,
    stage_clip,
)
from paddle_adagc.integrations.logs import clip_logs, warm_up_end
from paddle_adagc.optimizer import clip_of, put_into_optimizer, threshold_of
from paddle_adagc.parallel.units import Declared

if TYPE_CHECKING:
    from paddlenlp.trainer import TrainerCallback
else:
    TrainerCallback = object

Where = bool | str | os.PathLike[str]
"""Folder of a record; True: the default one; False: no record."""

METHODS = {
    "create_optimizer": "make_optimizer",
    "create_optimizer_and_scheduler": "make_optimizer",
    "train": "train",
    "_inner_training_loop": "run_loop",
    "log": "log",
    "_save_checkpoint": "save",
}
"""Method of a Trainer -> that of the :class:`TrainerClip` around it."""

_ERNIE_S_CALLBACK = "ClipGradByAdaptiveNormCallback"
_UNKNOWN: Any = object()


@dataclasses.dataclass
class Options:
    """The arguments of :class:`.ClippingMixin` beside the clip, checked."""

    missing_state: MissingState = "raise"
    new_tensors: NewTensors = "raise"
    units: Declared | None = None
    record: Where = True
    shadow: ClipGradBase | bool | None = None
    skip_above: float | None = None
    stop_on: Literal["nan"] | None = None
    on_alarm: Any = None

    def __post_init__(self) -> None:
        check_choice(
            "missing_state", self.missing_state, get_args(MissingState)
        )
        check_choice("new_tensors", self.new_tensors, get_args(NewTensors))
        self.make_record()

    def make_record(self) -> Any:
        """Return what records a run; None in a copy without the recorder."""
        names = "record", "shadow", "skip_above", "stop_on", "on_alarm"
        given = [getattr(self, name) for name in names]
        try:
            from paddle_adagc.watch.trainer import TrainerRecord
        except ModuleNotFoundError:
            if not all(x is None or isinstance(x, bool) for x in given):
                raise
            return None
        return TrainerRecord(*given)


class TrainerClip(TrainerCallback):
    """A clip, and a record, in one Trainer, of which it is a callback, too.

    The methods of :data:`METHODS` take the Trainer's own as first argument.

    Args:
        trainer: After its class' ``__init__``.
        clip: As for :class:`.ClippingMixin`. None: the Trainer's own stays, and
            is recorded; checkpoints get the state of the record's shadow.
        options: What else there is to choose.
    """

    def __init__(
        self, trainer: Any, clip: ClipGradBase | None, options: Options
    ) -> None:
        self.trainer, self.clip, self._options = trainer, clip, options
        self.recording = options.make_record()
        self._is_prepared = self._is_put = False
        self._checkpoint: Any = _UNKNOWN
        self._sum: Any = None  # the Trainer's, of the losses since a log
        self._run = ""  # its name
        self._staged: list[tuple[Path, Path]] = []  # states to be placed
        own = getattr(trainer, "_check_loss_valid", None)
        if own is not None and (options.skip_above or options.stop_on):
            check = functools.partial(self._check_loss, own)
            trainer._check_loss_valid = check
        trainer.add_callback(self)

    @property
    def record(self) -> Any:
        """The Trainer's record; None: there is none now."""
        return self.recording and self.recording.record

    def prepare(self) -> None:
        """Bind the clip to the model, before fleet wraps it; only once."""
        if self._is_prepared or self.clip is None:
            return
        self._is_prepared = True
        args, model = self.trainer.args, self.trainer.model
        check_clipping(args, self.clip)
        units = self._options.units
        if isinstance(self.clip, ClipGradByAdaGC) and not (
            units is None and self.clip._progress.tensors.is_bound
        ):
            bind_clip(self.clip, model, units, args)
        self._put(self.trainer.optimizer)  # from optimizers=

    def _put(self, optimizer: Any) -> None:
        if optimizer is None or self.clip is None:
            return
        old, text = clip_of(optimizer), ""
        norm = threshold_of(old)
        wanted = getattr(self.clip, "lambda_abs", norm)
        if isinstance(old, ClipGradByAdaGC) and old is not self.clip:
            text = f"{old!r}: give its settings to the clip in force"
        elif norm not in (None, 0, wanted):
            text = f"{type(old).__name__} with the threshold {norm}: give "
            text += "the warm-up the same by lambda_abs"
        if text:
            warnings.warn(f"{self.clip!r} replaces {text}", stacklevel=4)
        put_into_optimizer(optimizer, self.clip)
        self._is_put = True

    def make_optimizer(
        self, make: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Make the Trainer's optimizer, and its scheduler, with the clip."""
        self.prepare()
        with without_threshold(self.trainer.args, self.clip):
            made = make(*args, **kwargs)
        self._put(self.trainer.optimizer if made is None else made)
        return made

    def train(
        self, train: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Train; ``resume_from_checkpoint=True`` is the newest whole one."""
        self.prepare()
        self._take_over_callback()
        if args[:1] == (True,):
            args = (self._newest_checkpoint(), *args[1:])
        elif kwargs.get("resume_from_checkpoint") is True:
            kwargs["resume_from_checkpoint"] = self._newest_checkpoint()
        self._checkpoint = _checkpoint_in(train, args, kwargs) or _UNKNOWN
        try:
            with without_threshold(self.trainer.args, self.clip):
                return train(*args, **kwargs)
        except BaseException as error:
            if self.recording is not None:
                self.recording.leave(error)
            raise

    def _check_loss(self, check: Callable[[Any], None], loss: Any) -> None:
        """Leave a loss of NaN to the record, as long as that can do something.

        The Trainer would raise before the optimizer's step.
        """
        self._sum = loss
        record, skips = self.record, self._options.skip_above is not None
        if record is None or record.error or (skips and record.is_lost):
            check(loss)

    def run_loop(
        self, loop: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Train; by now a checkpoint is downloaded."""
        self._take_over_callback()
        found = _checkpoint_in(loop, args, kwargs)
        if found is not _UNKNOWN:
            self._checkpoint = found
        return loop(*args, **kwargs)

    def _take_over_callback(self) -> None:
        """Remove ERNIE's callback, which loads its own state into our clip."""
        handler, name = self.trainer.callback_handler, _ERNIE_S_CALLBACK
        if isinstance(self.clip, ClipGradByAdaGC):
            others = (x for x in handler.callbacks if type(x).__name__ != name)
            handler.callbacks[:] = [*others]

    def _newest_checkpoint(self) -> Any:
        folder = self.trainer.args.output_dir
        kinds, name = type(self.trainer).__mro__, "get_last_checkpoint"
        homes = (vars(sys.modules[kind.__module__]) for kind in kinds)
        find = next(home[name] for home in homes if name in home)
        newest = find(folder) if Path(folder).is_dir() else None
        return newest_finished(folder, newest)

    def _resumed_from(self, args: Any, state: Any) -> Any:
        """Return the checkpoint that the Trainer has loaded, if any."""
        if self._checkpoint is not _UNKNOWN:
            return self._checkpoint or None
        if not state.global_step:
            return None
        given = getattr(args, "resume_from_checkpoint", None)
        if not isinstance(given, str):
            raise ValueError(
                f"the Trainer resumes at step {state.global_step}, and does "
                "not say from where: give the checkpoint as "
                "args.resume_from_checkpoint, too"
            )
        return given

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Ignore the other events; which there are differs by Trainer."""
        if not event.startswith("on_"):
            raise AttributeError(event)
        return lambda *args, **kwargs: None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **objects: Any
    ) -> None:
        """Resume the clip; begin to record; say how long the warm-up takes."""
        checkpoint = self._resumed_from(args, state)
        self.load(checkpoint)
        if not self._is_put:  # another method has made the optimizer
            self._put(objects["optimizer"])
        self._record(args, state, objects, checkpoint)
        self._run = name_run(args)
        mark_step(state, self._run)
        end = warm_up_end(self.clip, state)
        last = getattr(state, "max_steps", 0) or args.max_steps
        if end and 0 < last <= end:
            warnings.warn(
                f"t_start={getattr(self.clip, 't_start', 0)}, and "
                f"max_steps={last}: training ends before the clip's warm-up is "
                f"over, at step {end}; {last - state.global_step} steps are "
                "left",
                stacklevel=4,
            )
        elif end:
            logger_of(args).info(f"paddle_adagc: warm-up until step {end}")

    def load(self, checkpoint: Any) -> None:
        """Resume the clip from a checkpoint; None: it starts anew."""
        clears = getattr(self.trainer.args, CLEARS, False)
        if clears and isinstance(self.clip, ClipGradByAdaGC):
            logger_of(self.trainer.args).warning(
                f"paddle_adagc: {CLEARS}: no state of the clip is loaded, and "
                "its warm-up begins"
            )
            self.clip.restart_warmup()
            return
        missing, new = self._options.missing_state, self._options.new_tensors
        load_clip(self.clip, checkpoint, missing, self.trainer.state, new)

    def _record(
        self, args: Any, state: Any, objects: dict[str, Any], found: Any
    ) -> None:
        """Open the record, whose shadow goes on from a checkpoint."""
        if self.recording is None:
            return
        model = objects["model"]

        def bind(shadow: Any) -> None:
            # Else the record binds it, and says why it cannot.
            with contextlib.suppress(RuntimeError, TypeError, ValueError):
                shadow.bind(model, units_of(model, args))

        def load(shadow: Any) -> None:
            if not getattr(args, CLEARS, False):
                load_clip(shadow, found, "start", state)

        trained = model, objects["optimizer"]
        self.recording.begin(args, state, *trained, bind, load, self.trainer)

    def on_step_end(self, *event: Any, **objects: Any) -> None:
        """Record the step."""
        mark_step(event[1], self._run)
        if self.recording is not None:
            self.recording.step(event[2])

    def on_train_end(self, *event: Any, **objects: Any) -> None:
        """Close the record."""
        self._staged = place_clip(self._staged)
        if self.recording is not None:
            self.recording.close()

    def log(
        self, log: Callable[..., Any], logs: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Log, with the clip's numbers beside a training loss; on all ranks."""
        numbers: dict[str, Any] = {}
        if "loss" in logs:
            if self._sum is not None:
                self._sum.zero_()  # not NaN - NaN, as the Trainer does
            more = self.recording.numbers() if self.recording else {}
            if end := warm_up_end(self.clip, self.trainer.state):
                more["warmup_until"] = end
            if isinstance(self.clip, ClipGradByAdaGC):
                more = {**self.clip.summary(), **more}
            numbers = clip_logs(more, self.trainer.args)
        logs.update(numbers)  # the Trainer reads what its log() adds to it
        log(logs, *args, **kwargs)

    def save(self, save: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Save, also if the clip cannot; its file comes last."""
        saved = self.recording.saved(self.clip) if self.recording else self.clip
        if self.recording and self.recording.refuses_to_save():
            return
        try:
            state = self.trainer.state
            self._staged += stage_clip(saved, self.trainer.args, state)
        except Exception as error:
            if saved is self.clip:
                save(*args, **kwargs)
                raise
            from paddle_adagc.watch.alarms import warn

            warn(f"the shadow's state is not saved: {error!r}")
        save(*args, **kwargs)
        self._staged = place_clip(self._staged)


def _checkpoint_in(method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return what a method gets as ``resume_from_checkpoint``.

    A method of ``(*args)`` does not say.
    """
    name, signature = "resume_from_checkpoint", inspect.signature(method)
    given = {**kwargs, **signature.bind(*args, **kwargs).arguments}
    return given.get(name, None if name in signature.parameters else _UNKNOWN)


def attach(trainer: Any, clip: ClipGradBase | None, options: Options) -> None:
    """Let one Trainer clip, whatever its class: outermost, and only once.

    It may be within its class' ``__init__``; see :class:`TrainerClip`.
    """
    if hasattr(trainer, "_adagc"):
        return
    trainer._adagc = TrainerClip(trainer, clip, options)
    for name, ours in METHODS.items():
        own = getattr(trainer, name, None)
        if own is not None:
            around = functools.partial(getattr(trainer._adagc, ours), own)
            setattr(trainer, name, functools.update_wrapper(around, own))
