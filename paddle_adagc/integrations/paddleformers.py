# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleFormers' ``Trainer``, and in what derives from it.

Put :class:`ClippingMixin` before the Trainer's class. If you cannot choose that
class, use :class:`ClippingCallback`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paddle.nn.clip import ClipGradBase
from paddleformers.trainer import TrainerCallback
from paddleformers.trainer.integrations import (
    TensorBoardCallback,
    VisualDLCallback,
    WandbCallback,
    get_reporting_integration_callbacks,
)

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.integrations.paddlenlp import ClippingMixin
from paddle_adagc.integrations.trainer import (
    MissingState,
    add_histograms,
    check_missing_state,
    clip_logs,
    clip_summary,
    load_clip,
    put_into_optimizer,
    save_clip,
    take_over_clipping,
)

__all__ = ["ClippingCallback", "ClippingMixin"]


class ClippingCallback(TrainerCallback):
    """Let any ``Trainer`` clip with ``clip``; give it as one of ``callbacks``.

    It does what :class:`ClippingMixin` does, with three differences. It resumes
    from ``args.resume_from_checkpoint``, or else from the checkpoint of the
    same step in ``output_dir``: a callback does not see the argument of
    ``train``. It writes the clip's state after PaddleFormers' own files. The
    Trainer reports a log before this callback can add to it, so VisualDL and
    TensorBoard show the clip's numbers as a separate run, ``clip`` in
    ``args.logging_dir``, and Weights & Biases in the Trainer's run.

    Args:
        clip: See :class:`ClippingMixin`.
        missing_state: Likewise.
    """

    def __init__(
        self, clip: ClipGradBase, missing_state: MissingState = "raise"
    ) -> None:
        super().__init__()
        check_missing_state(missing_state)
        self.clip = clip
        self._missing_state = missing_state
        self._reporters: list[TrainerCallback] = []

    def on_init_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Keep PaddleFormers from making a clip of its own."""
        take_over_clipping(args, self.clip)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Put the clip into the optimizer; resume it with the run.

        Raises:
            FileNotFoundError: The checkpoint holds no state of a clip.
            ValueError: It holds another model's, or another clip's.
        """
        if isinstance(self.clip, TensorScalingClip):
            self.clip.bind(kwargs["model"])
        put_into_optimizer(kwargs["optimizer"], self.clip)
        if state.global_step:
            own = f"{args.output_dir}/checkpoint-{state.global_step}"
            checkpoint = args.resume_from_checkpoint or own
            load_clip(self.clip, checkpoint, self._missing_state)
        if state.is_world_process_zero:
            self._reporters = _make_reporters(args)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the clip's numbers to a training loss."""
        if logs is None or "loss" not in logs:
            return
        summary = clip_summary(self.clip)
        numbers = clip_logs(summary)
        logs.update(numbers)
        for reporter in self._reporters if numbers else ():
            reporter.on_log(args, state, control, logs=numbers, **kwargs)
        add_histograms(self._reporters, summary, state.global_step)

    def on_train_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Close the clip's own logs."""
        for reporter in self._reporters:
            reporter.on_train_end(args, state, control, **kwargs)

    def on_save(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Save the clip's state beside the checkpoint's other files."""
        save_clip(self.clip, args.output_dir, state.global_step)


def _make_reporters(args: Any) -> list[TrainerCallback]:
    """Return PaddleFormers' reporters, writing to a folder of the clip's."""
    reporters: list[TrainerCallback] = []
    for kind in get_reporting_integration_callbacks(args.report_to):
        if kind in (VisualDLCallback, TensorBoardCallback, WandbCallback):
            reporters.append(kind())
        if kind in (VisualDLCallback, TensorBoardCallback):
            folder = str(Path(args.logging_dir) / "clip")
            reporters[-1]._init_summary_writer(args, folder)
    return reporters
