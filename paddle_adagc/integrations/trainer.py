# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in the Trainers of PaddleNLP, PaddleFormers and PaddleFleet.

They descend from each other; what differs is asked of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.progress import NewTensors
from paddle_adagc.integrations.attach import (
    Callback,
    begin,
    bind_clip,
    check_choices,
    log_numbers,
    make_record,
    only_warns,
    take_over_clipping,
)
from paddle_adagc.integrations.checkpoints import (
    MissingState,
    load_clip,
    newest_finished,
    place_clip,
    resumed_from,
    stage_clip,
)
from paddle_adagc.integrations.logs import (
    add_histograms,
    clip_logs,
    clip_summary,
)
from paddle_adagc.integrations.no_record import NoRecord, StopOn, Where
from paddle_adagc.integrations.optimizer import put_into_optimizer
from paddle_adagc.parallel.units import Declared

if TYPE_CHECKING:
    from paddlenlp.trainer import Trainer
else:
    Trainer = object


class ClippingMixin(Trainer):
    """Let a ``Trainer`` clip with ``clip``: put it before the Trainer's class.

    The optimizer stays the one that the Trainer makes from its arguments, with
    ``clip`` in place of ``max_grad_norm``. The mixin binds the clip before
    fleet wraps the model. It saves the clip's state for the whole model in
    every checkpoint, in a file (:mod:`paddle_adagc.state`) that comes after the
    Trainer's, and resumes from the checkpoint that the Trainer loads; the file
    that one process finds serves all.

    Every training log gets ``clip_...`` numbers of the last step, over all
    ranks, from :meth:`ClipGradByAdaGC.summary`, and the global norm under the
    names that the Trainer has for it; the backends in ``report_to`` also get
    :func:`histograms of the tensors
    <paddle_adagc.integrations.logs.add_histograms>`. Of all steps since the log
    before it has the worst: ``clip_h_min_worst`` and
    ``clip_global_grad_norm_max``, each with its step, counted from 0 as in the
    record (``clip_h_min_worst_step``). During the warm-up
    ``clip_warmup_until`` is the ``global_step`` at which it ends.

    Args:
        *args: Arguments of the Trainer.
        clip: One of this package's, or any ``ClipGradBase`` but
            ``ClipGradByGlobalNorm``, which fleet replaces by its own. Other
            clips have no state and no numbers here.
        missing_state: What to do with a checkpoint that holds no state of this
            class of clips. ``"raise"``: refuse it. ``"start"``: start the clip
            with its warm-up; so a run that had no such clip switches to it.
        new_tensors: What to do with a state of other tensors than the model's:
            see :meth:`ClipGradByAdaGC.set_state_dict`.
        units: See :meth:`ClipGradByAdaGC.bind`. By default they are those
            that the model names itself (:class:`.ModelUnits`).
        record: Folder of the run's :class:`.Record`, for ``adagc-report``.
            Default: ``record`` in ``args.output_dir``. False, or by default in
            a copy of the package that leaves the recorder out: none, and no
            worst steps in the logs.
        shadow: See :class:`.Record`.
        skip_above: See :class:`.Record`; it needs ``record``.
        stop_on: ``"nan"``: end the training once a loss is not finite, at the
            next log or 64 steps later; with a checkpoint, if the weights are
            finite.
        **kwargs: Arguments of the Trainer; ``model`` as built, not wrapped.

    Raises:
        TypeError: ``clip`` is no clip, or the Trainer's class stands first.
        ValueError: ``missing_state`` is unknown; at a resume, the clip's state
            does not fit.
        FileNotFoundError: At a resume, the checkpoint holds no clip's state.
        ImportError: An option needs the recorder, which this copy leaves out.

    Example:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> from paddle_adagc.integrations.paddlenlp import ClippingMixin
        >>> class ClippingTrainer(ClippingMixin, Trainer):
        ...     pass
        >>> trainer = ClippingTrainer(
        ...     clip=ClipGradByAdaGC(),
        ...     model=model,
        ...     args=args,
        ...     train_dataset=train_dataset,
        ... )
        >>> _ = trainer.train()
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class in which the Trainer's methods hide the mixin's."""
        super().__init_subclass__(**kwargs)
        for kind in cls.__mro__[: cls.__mro__.index(ClippingMixin)]:
            is_trainer = hasattr(kind, "create_optimizer")
            if is_trainer and not issubclass(kind, ClippingMixin):
                raise TypeError(
                    f"{kind.__name__} stands before ClippingMixin, which then "
                    f"does nothing: class {cls.__name__}(ClippingMixin, "
                    f"{kind.__name__})"
                )

    def __init__(
        self,
        *args: Any,
        clip: ClipGradBase,
        missing_state: MissingState = "raise",
        new_tensors: NewTensors = "raise",
        units: Declared | None = None,
        record: Where = True,
        shadow: ClipGradBase | bool | None = None,
        skip_above: float | None = None,
        stop_on: StopOn = None,
        **kwargs: Any,
    ) -> None:
        check_choices(clip, missing_state, new_tensors)
        recording = make_record(record, shadow, skip_above, stop_on)
        super().__init__(*args, **kwargs)
        self.clip = clip
        self._adagc_attach(clip, recording, missing_state, new_tensors, units)
        self._adagc_prepare()

    def _adagc_attach(
        self,
        clip: ClipGradBase,
        recording: NoRecord,
        missing_state: MissingState = "raise",
        new_tensors: NewTensors = "raise",
        units: Declared | None = None,
    ) -> None:
        """Take the clip; :meth:`_adagc_prepare` has to follow."""
        check_choices(clip, missing_state, new_tensors)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, Callback) and callback.clips:
                kind = type(callback).__name__
                raise ValueError(
                    f"{type(self).__name__} clips already, by ClippingMixin: "
                    f"leave {kind} out of its callbacks"
                )
        self._adagc_clip, self._adagc_recording = clip, recording
        self._adagc_missing_state = missing_state
        self._adagc_new_tensors = new_tensors
        self._adagc_units = units
        self._adagc_is_prepared = False
        self.add_callback(_Begin(self))

    def _adagc_prepare(self) -> None:
        """Bind the clip to the model, before fleet wraps it; only once."""
        if self._adagc_is_prepared:
            return
        self._adagc_is_prepared = True
        clip = self._adagc_clip
        take_over_clipping(self.args, clip)
        if not isinstance(clip, ClipGradByAdaGC):
            return
        if getattr(self.args, "enable_auto_parallel", False):
            raise ValueError(
                "enable_auto_parallel spreads the model over its ranks within "
                "train(), after the clip has read it: use fleet's parallelism, "
                "or a plain loop with shard_optimizer"
            )
        sharding = getattr(self.args, "sharding", ())
        if "fsdp" in {getattr(kind, "value", kind) for kind in sharding}:
            raise ValueError(
                "sharding=fsdp joins tensors within train(), after the clip "
                "has read them: use sharding=stage1"
            )
        bind_clip(clip, self.model, self._adagc_units, self.args)

    def _build_grad_clip(self) -> ClipGradBase:
        """Give PaddleFleet's ``create_optimizer`` the clip."""
        return self._adagc_clip

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Make the Trainer's optimizer, with the clip."""
        self._adagc_prepare()
        optimizer = super().create_optimizer(*args, **kwargs)
        made = self.optimizer if optimizer is None else optimizer
        put_into_optimizer(made, self._adagc_clip)
        return optimizer

    def create_optimizer_and_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Make both; a Trainer may do it without ``create_optimizer``."""
        self._adagc_prepare()
        result = super().create_optimizer_and_scheduler(*args, **kwargs)
        if self.optimizer is not None:
            put_into_optimizer(self.optimizer, self._adagc_clip)
        return result

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; with ``resume_from_checkpoint`` the clip resumes, too.

        True is the newest checkpoint in ``output_dir`` whose save was not cut.

        Raises:
            FileNotFoundError: The checkpoint holds no state of a clip, or there
                is no checkpoint.
            ValueError: It holds another model's, clip's, run's or step's.
        """
        self._adagc_prepare()
        if args[:1] == (True,):
            args = (self._adagc_newest_checkpoint(), *args[1:])
        elif kwargs.get("resume_from_checkpoint") is True:
            kwargs["resume_from_checkpoint"] = self._adagc_newest_checkpoint()
        return super().train(*args, **kwargs)

    def _adagc_newest_checkpoint(self) -> Any:
        folder = self.args.output_dir
        modules = [sys.modules[kind.__module__] for kind in type(self).__mro__]
        find = next(
            module.get_last_checkpoint
            for module in modules
            if hasattr(module, "get_last_checkpoint")
        )
        newest = find(folder) if Path(folder).is_dir() else None
        return newest_finished(folder, newest)

    def _adagc_begin(self, args: Any, state: Any, **kwargs: Any) -> None:
        self._adagc_load(resumed_from(args, state))
        begin(self._adagc_clip, self._adagc_recording, args, state, **kwargs)

    def _adagc_load(self, checkpoint: Any) -> None:
        load_clip(
            self._adagc_clip,
            checkpoint,
            self._adagc_missing_state,
            self.state,
            self._adagc_new_tensors,
        )

    def _adagc_summary(self) -> dict[str, Any]:
        return clip_summary(self._adagc_clip)

    def log(self, logs: dict[str, Any], **kwargs: Any) -> None:
        """Log, with the clip's numbers beside a training loss."""
        summary, numbers = {}, {}
        if "loss" in logs:
            summary = self._adagc_summary()
            more = log_numbers(
                self._adagc_clip, self._adagc_recording, self.state
            )
            numbers = clip_logs({**summary, **more}, self.args)
        super().log({**logs, **numbers}, **kwargs)
        if self.state.is_world_process_zero:
            callbacks = self.callback_handler.callbacks
            with only_warns("the clip's histograms are not reported"):
                add_histograms(callbacks, summary, self.state.global_step)

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        saved = self._adagc_recording.saved(self._adagc_clip)
        staged, is_shadow = [], saved is not self._adagc_clip
        with only_warns("the shadow's state is not saved", is_shadow):
            staged = stage_clip(saved, self.args, self.state)
        super()._save_checkpoint(model, metrics=metrics)
        place_clip(staged)


class _Begin(Callback):
    """Lets a mixin's clip resume once the Trainer has loaded its state."""

    def __init__(self, trainer: ClippingMixin) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        self._trainer._adagc_begin(args, state, **kwargs)

    def on_step_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        self._trainer._adagc_recording.step(control)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._trainer._adagc_recording.close()
