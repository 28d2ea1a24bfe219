# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in PaddleNLP's ``Trainer``, and in what derives from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
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

if TYPE_CHECKING:
    from paddlenlp.trainer import Trainer
else:
    Trainer = object


class ClippingMixin(Trainer):
    """Let a ``Trainer`` clip with ``clip``: put it before the Trainer's class.

    The optimizer stays the one that the Trainer makes from its arguments, with
    ``clip`` in place of ``ClipGradByGlobalNorm`` and ``max_grad_norm``. The
    mixin binds the clip before fleet wraps the model. It saves the clip's state
    for the whole model in every checkpoint, before the Trainer's files and in a
    file of its own (:mod:`paddle_adagc.state`), and
    ``train(resume_from_checkpoint=...)`` resumes from it; the file that one
    process finds serves all. Every training log gets ``clip_...`` numbers of
    the last step, over all ranks, from :meth:`TensorScalingClip.summary`; the
    backends in ``report_to`` also get :func:`histograms of the tensors
    <paddle_adagc.integrations.trainer.add_histograms>`.

    Args:
        *args: Arguments of the Trainer.
        clip: One of this package's, or any ``ClipGradBase`` but
            ``ClipGradByGlobalNorm``, which fleet replaces by its own. Other
            clips have no state and no numbers here.
        missing_state: What to do with a checkpoint that holds no state of a
            clip. ``"raise"``: refuse it. ``"start"``: start the clip with its
            warm-up; so a run that had no such clip switches to it.
        **kwargs: Arguments of the Trainer; ``model`` as built, not wrapped.
    """

    def __init__(
        self,
        *args: Any,
        clip: ClipGradBase,
        missing_state: MissingState = "raise",
        **kwargs: Any,
    ) -> None:
        check_missing_state(missing_state)
        super().__init__(*args, **kwargs)
        self.clip = clip
        self._missing_state = missing_state
        take_over_clipping(self.args, clip)
        if isinstance(clip, TensorScalingClip):
            self._bind_clip(clip)

    def _bind_clip(self, clip: TensorScalingClip) -> None:
        clip.bind(self.model)

    def create_optimizer(self, lr_scheduler: Any = None) -> Any:
        """Make the Trainer's optimizer, with the clip."""
        optimizer = super().create_optimizer(lr_scheduler)
        put_into_optimizer(optimizer, self.clip)
        return optimizer

    def train(
        self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; with a checkpoint the clip resumes, too.

        Args:
            resume_from_checkpoint: A checkpoint, or True for the newest one in
                ``output_dir``.
            *args: Further arguments of the Trainer.
            **kwargs: Likewise.

        Raises:
            FileNotFoundError: The checkpoint holds no state of a clip, or there
                is no checkpoint.
            ValueError: It holds another model's, or another clip's.
        """
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = _newest_checkpoint(self.args.output_dir)
        if checkpoint:
            self._load_clip(checkpoint)
        return super().train(checkpoint, *args, **kwargs)

    def _load_clip(self, checkpoint: str) -> None:
        load_clip(self.clip, checkpoint, self._missing_state)

    def log(self, logs: dict[str, Any], **kwargs: Any) -> None:
        """Log, with the clip's numbers beside a training loss."""
        summary = self._clip_summary() if "loss" in logs else {}
        super().log({**logs, **clip_logs(summary)}, **kwargs)
        if self.state.is_world_process_zero:
            callbacks = self.callback_handler.callbacks
            add_histograms(callbacks, summary, self.state.global_step)

    def _clip_summary(self) -> dict[str, Any]:
        """Summarise the last step; empty for a clip without a summary."""
        return clip_summary(self.clip)

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        save_clip(self.clip, self.args.output_dir, self.state.global_step)
        super()._save_checkpoint(model, metrics=metrics)


def _newest_checkpoint(output_dir: str) -> str:
    steps = [
        int(match[1])
        for path in Path(output_dir).glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    ]
    if not steps:
        raise FileNotFoundError(
            f"resume_from_checkpoint=True, and {output_dir} holds no checkpoint"
        )
    return str(Path(output_dir) / f"checkpoint-{max(steps)}")
