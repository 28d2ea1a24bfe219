# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip as a callback of a Trainer."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

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


class TrainerEvents(Callback):
    """Numbers of a clip in the logs, its state in checkpoints; and a record.

    Args:
        recording: What records the run.
    """

    clip: ClipGradBase | None = None

    def __init__(self, recording: NoRecord) -> None:
        self.recording = recording
        self._reporters: list[Any] = []

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Open the record."""
        begin(self.clip, self.recording, args, state, **kwargs)
        self._make_reporters(args, state, control)

    def _make_reporters(self, args: Any, state: Any, control: Any) -> None:
        if not (state.is_world_process_zero and getattr(args, "report_to", ())):
            return
        library = type(control).__module__.rpartition(".")[0]
        known = importlib.import_module(f"{library}.integrations")
        for kind in known.get_reporting_integration_callbacks(args.report_to):
            if kind in (known.VisualDLCallback, known.TensorBoardCallback):
                self._reporters.append(kind())
                folder = str(Path(args.logging_dir) / "clip")
                self._reporters[-1]._init_summary_writer(args, folder)
            elif kind is known.WandbCallback:
                self._reporters.append(kind())

    def on_step_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Record the step."""
        self.recording.step(control)

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Write the steps before a checkpoint."""
        self.recording.before_save(control)

    def on_log(
        self, *event: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Add the clip's numbers to a training loss."""
        if not logs or "loss" not in logs:
            return
        args, state, _ = event
        summary = clip_summary(self.clip)
        more = log_numbers(self.clip, self.recording, state)
        numbers = clip_logs({**summary, **more}, args)
        logs.update(numbers)
        with only_warns("the clip's numbers are not reported"):
            for reporter in self._reporters if numbers else ():
                reporter.on_log(*event, logs=numbers, **kwargs)
            add_histograms(self._reporters, summary, state.global_step)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Close the record, and the clip's own logs."""
        self.recording.close()
        for reporter in self._reporters:
            reporter.on_train_end(*args, **kwargs)
        self._reporters = []

    def on_save(self, args: Any, state: Any, *_: Any, **kwargs: Any) -> None:
        """Save the clip's state beside the checkpoint's other files."""
        saved = self.recording.saved(self.clip)
        is_shadow = saved is not self.clip
        with only_warns("the shadow's state is not saved", is_shadow):
            place_clip(stage_clip(saved, args, state))


class ClippingCallback(TrainerEvents):
    """Let any ``Trainer`` clip with ``clip``; give it as one of ``callbacks``.

    It does what :class:`.ClippingMixin` does, with three differences. It cannot
    resolve ``train(resume_from_checkpoint=True)``. A kill between the Trainer's
    last file and the clip's leaves a checkpoint without the clip's. The
    Trainer reports a log before this callback can add to it, so VisualDL and
    TensorBoard show the clip's numbers as a separate run, ``clip`` in
    ``args.logging_dir``, and Weights & Biases in the Trainer's run.

    Args:
        clip: As for the mixin.
        missing_state: As for the mixin.
        units: As for the mixin.
        new_tensors: As for the mixin.
        record: As for the mixin.
        shadow: As for the mixin.
        skip_above: See :class:`.ClippingMixin`.
        stop_on: See :class:`.ClippingMixin`.

    Raises:
        TypeError, ValueError, FileNotFoundError: As for the mixin.

    Example:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> from paddle_adagc.integrations.paddlenlp import ClippingCallback
        >>> callback = ClippingCallback(ClipGradByAdaGC())
        >>> trainer = Trainer(
        ...     model=model,
        ...     args=args,
        ...     train_dataset=train_dataset,
        ...     callbacks=[callback],
        ... )
        >>> _ = trainer.train()
    """

    clips = True

    def __init__(
        self,
        clip: ClipGradBase,
        missing_state: MissingState = "raise",
        units: Declared | None = None,
        new_tensors: NewTensors = "raise",
        record: Where = True,
        shadow: ClipGradBase | bool | None = None,
        skip_above: float | None = None,
        stop_on: StopOn = None,
    ) -> None:
        check_choices(clip, missing_state, new_tensors)
        super().__init__(make_record(record, shadow, skip_above, stop_on))
        self.clip: ClipGradBase = clip
        self._missing_state, self._new_tensors = missing_state, new_tensors
        self._units = units

    def on_init_end(self, args: Any, *others: Any, **kwargs: Any) -> None:
        """Keep the Trainer from making another clip."""
        take_over_clipping(args, self.clip)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Put the clip into the optimizer; resume it with the run."""
        clip = self.clip
        if isinstance(clip, ClipGradByAdaGC):
            bind_clip(clip, kwargs["model"], self._units, args)
        put_into_optimizer(kwargs["optimizer"], clip)
        checkpoint = resumed_from(args, state)
        load_clip(
            clip, checkpoint, self._missing_state, state, self._new_tensors
        )
        super().on_train_begin(args, state, control, **kwargs)
