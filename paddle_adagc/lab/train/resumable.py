# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Trainer whose checkpoints a run resumes from, with the same losses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from paddlenlp.trainer import Trainer

from paddle_adagc.integrations.paddlenlp import ClippingMixin
from paddle_adagc.lab.models.safe_pickle import load_pickle
from paddle_adagc.lab.train.checkpoints import (
    complete_checkpoint,
    read_complete,
    remove_checkpoint,
    rotate_checkpoints,
)
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.processes import (
    from_first_process,
    is_first_process,
    wait_for_all,
)
from paddle_adagc.lab.train.recorder import StepRecorder
from paddle_adagc.lab.train.resharding import (
    must_reshard,
    read_optimizer_state,
    save_layout,
)
from paddle_adagc.lab.train.weights import load_model


class ResumableTrainer(ClippingMixin, Trainer):
    """Saves and loads all that a killed run needs to have the same losses.

    Every checkpoint holds the state of the clip, of the spike monitor and of
    the alarms, and can be loaded under another layout.

    Args:
        config: The run.
        recorder: Its record.
        **kwargs: Arguments of :class:`ClippingMixin`.

    Attributes:
        starts_afresh: Of ``"clip"`` and ``"optimizer"``, what does not take its
            state from the checkpoint.
    """

    def __init__(
        self, config: RunConfig, recorder: StepRecorder, **kwargs: Any
    ) -> None:
        self.config, self.recorder = config, recorder
        super().__init__(**kwargs)
        self.starts_afresh: frozenset[str] = frozenset()
        self._reshards = self._has_weights = False

    def _open_record(self, resume_from_checkpoint: str | None) -> None:
        """Begin the record, or continue it from a checkpoint."""
        first_step, self._earlier_seconds = 0, 0.0
        if resume_from_checkpoint is not None:
            checkpoint = Path(resume_from_checkpoint)
            facts = read_complete(checkpoint)
            first_step = facts["step"]
            self._earlier_seconds = facts["wall_seconds"]
            self.recorder.monitor.set_state_dict(facts["monitor"])
            self.recorder.has_diverged = facts.get("has_diverged", False)
            if "alarms" in facts:
                self.recorder.watcher.set_state_dict(facts["alarms"])
            self._reshards = must_reshard(checkpoint, self.config.parallel)
        self.recorder.open(first_step)
        self._train_started = time.perf_counter()

    def _wall_seconds(self) -> float:
        """Return the training seconds so far, earlier processes included."""
        return self._earlier_seconds + time.perf_counter() - self._train_started

    def load_weights(self, checkpoint: Path) -> None:
        """Load the weights alone, of any layout; :meth:`train` keeps them.

        Raises:
            ValueError: They are another model's.
        """
        load_model(self.model, checkpoint)
        self._has_weights = True

    def _load_clip(self, checkpoint: str) -> None:
        if "clip" not in self.starts_afresh:
            super()._load_clip(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: Any = None) -> None:
        if self._has_weights:
            return
        if self._reshards:
            load_model(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        """Load them; the rate follows this run's schedule from here on."""
        if checkpoint is None:
            return
        if self._reshards or "optimizer" in self.starts_afresh:
            self._load_parts(Path(checkpoint))
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
        self.lr_scheduler.step(self.lr_scheduler.last_epoch)

    def _load_parts(self, checkpoint: Path) -> None:
        """Load this rank's part of the optimizer's state, if it is wanted."""
        schedule = load_pickle(checkpoint / "scheduler.pdparams")
        if "optimizer" in self.starts_afresh:
            self.lr_scheduler.set_state_dict(schedule)
        else:
            state = read_optimizer_state(checkpoint, self.model, self.optimizer)
            state["LR_Scheduler"] = schedule
            self.optimizer.set_state_dict(state)
        if self.do_grad_scaling:
            scaler = checkpoint / "scaler.pdparams"
            self.scaler.load_state_dict(load_pickle(scaler, return_numpy=True))

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        """Save all parts, then mark the checkpoint complete, then rotate."""
        directory, step = Path(self.args.output_dir), self.state.global_step
        checkpoint = directory / f"checkpoint-{step}"
        from_first_process(lambda: remove_checkpoint(checkpoint))
        super()._save_checkpoint(model, metrics=metrics)
        suffix = self.args.optimizer_name_suffix
        save_layout(
            checkpoint,
            self.config.parallel,
            self.model,
            self.optimizer,
            f"optimizer.{suffix}.pdopt" if suffix else "optimizer.pdopt",
        )
        record = self.recorder.sync()
        wait_for_all()
        if not is_first_process():
            return
        facts = {
            "step": step,
            "wall_seconds": self._wall_seconds(),
            "monitor": self.recorder.monitor.state_dict(),
            "alarms": self.recorder.watcher.state_dict(),
        }
        complete_checkpoint(checkpoint, facts, record)
        rotate_checkpoints(directory, step, self.config.train.keep_checkpoints)

    def _rotate_checkpoints(
        self, use_mtime: bool = False, output_dir: Any = None
    ) -> None:
        """Do nothing: ``_save_checkpoint`` rotates at its end."""

    def _set_state_dict_in_model(self, state_dict: dict[str, Any]) -> None:
        """Load weights; Paddle would leave out those that do not fit."""
        mine = {k: v.shape for k, v in self.model.state_dict().items()}
        found = {k: [*v.shape] for k, v in state_dict.items()}
        wrong = sorted(k for k in mine | found if mine.get(k) != found.get(k))
        if wrong:
            name = wrong[0]
            raise ValueError(
                f"the checkpoint's weights do not fit the model: {name} is "
                f"{found.get(name, 'missing')} and should be "
                f"{mine.get(name, 'absent')} ({len(wrong)} of {len(mine)} "
                "tensors are wrong)"
            )
        super()._set_state_dict_in_model(state_dict)
