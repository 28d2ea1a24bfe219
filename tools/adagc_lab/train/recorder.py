# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The record of a run, and what the laboratory adds to each step."""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
from paddle import Tensor, nn

from adagc_lab.faults import Fault
from adagc_lab.record.files import (
    RECORD,
    num_steps,
    update_run_json,
)
from adagc_lab.train.config import RunConfig
from adagc_lab.train.processes import (
    from_first_process,
    is_first_process,
    mean_over_processes,
)
from adagc_lab.train.tensors import TensorColumns
from paddle_adagc import load_state, save_state
from paddle_adagc.optimizer import innermost
from paddle_adagc.watch import Record

logger = logging.getLogger(__name__)

SHADOW = "shadow_state.safetensors"
"""File of a checkpoint: state of the AdaGC that follows another clip."""

_DISK_SECONDS = 10.0  # how long the disk may take at a checkpoint
_LOGGED = ("global_grad_norm", "clipped_fraction", "h_min", "nonfinite")


class StepRecorder:
    """Adds a run's samples, faults, tensors and measures to its record.

    Nothing waits for the device until :meth:`flush`, but with
    ``record.tensors``. Every process makes one, and calls its methods.

    Args:
        config: The run.
        model: Names the tensors.
        optimizer: After fleet has wrapped it.
        first_step: Steps of earlier processes; later ones are superseded.
        seconds: Time of earlier processes.
    """

    def __init__(
        self,
        config: RunConfig,
        model: nn.Layer,
        optimizer: Any,
        first_step: int,
        seconds: float,
    ) -> None:
        self._config, self._model = config, model
        self._folder = Path(config.train.output_dir)
        self.has_diverged = False
        self._started = time.perf_counter() - seconds
        self._row: dict[str, Any] = {}
        self._losses: list[Tensor] = []  # since the last log
        from_first_process(lambda: self._check_steps(first_step))
        optimizer = innermost(optimizer)
        self.record = Record(
            self._folder / RECORD,
            optimizer,
            model,
            start=first_step,
            stop_on="nan",
            max_bytes=10**12,
        )
        self._tensors: TensorColumns | None = None
        if config.record.tensors:
            with_moments = config.record.moments
            self._tensors = TensorColumns(model, optimizer, with_moments)

    def _check_steps(self, first_step: int) -> None:
        if (found := num_steps(self._folder)) < first_step:
            raise ValueError(
                f"{self._folder / RECORD} holds {found} steps, fewer than the "
                f"{first_step} to resume from: put it back, or start anew "
                "with --overwrite"
            )

    @property
    def seconds(self) -> float:
        """Training seconds so far, earlier processes included."""
        return time.perf_counter() - self._started

    @property
    def is_in_step(self) -> bool:
        """Whether a step has begun and not ended."""
        return bool(self._row)

    def load_shadow(self, checkpoint: Path) -> None:
        """Let the shadow go on from the state that a checkpoint has of it."""
        shadow = self.record.shadow
        if shadow is not None and (checkpoint / SHADOW).exists():
            try:
                shadow.set_state_dict(load_state(checkpoint, SHADOW))
            except ValueError as error:  # of a fork with another model
                logger.warning("AdaGC's shadow starts anew: %s", error)
            self.record.forget_updates()

    def save_shadow(self, checkpoint: Path) -> None:
        """Save the state of AdaGC's shadow."""
        if (shadow := self.record.shadow) is not None:
            state = shadow.full_state_dict()
            if is_first_process():
                save_state(state, checkpoint, SHADOW)

    def begin_step(self, step: int) -> None:
        """Begin a step with the samples that are its own."""
        self.set_samples(step)
        if self._tensors is not None:
            self._tensors.begin_step()

    def set_samples(self, batch: int) -> None:
        """Record which samples of the training dataset make up the batch."""
        size = self._config.global_batch
        self._row["samples"] = [batch * size, (batch + 1) * size]

    def add_loss(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, a scalar on the device."""
        self.record.add_loss(
            loss / self._config.train.gradient_accumulation_steps
        )
        self._losses.append(loss)

    def add_fault(self, fault: Fault, tensors: Sequence[str] = ()) -> None:
        """Add a fault, with the tensors that it has hit."""
        entry = {"kind": fault.kind, "tensors": [*tensors]}
        self._row.setdefault("faults", []).append(entry)

    def end_step(self, **measures: float) -> None:
        """Finish the step in progress with more numbers of it."""
        row, self._row = self._row | measures, {}
        if self._tensors is not None:
            row |= self._tensors.numbers()
        self.record.step(**row)

    def logs(self) -> dict[str, Any]:
        """Return the mean loss and the clip's worst since the last log."""
        losses, self._losses = [*map(float, self._losses)], []
        loss = mean_over_processes(sum(losses) / len(losses))
        latest = self.record.latest()
        known = {name: latest[name] for name in _LOGGED if name in latest}
        known |= self.record.worst()
        return {"loss": loss} | {f"clip_{n}": x for n, x in known.items()}

    def flush(self) -> None:
        """Hand all steps to the record's thread.

        Only after a loss that is not finite are the weights looked at.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is raised here
            self.record.flush()
        if self.record.error is not None:
            raise self.record.error
        if self.record.should_stop:
            self.record.should_stop = ""
            self.check_weights()

    def check_weights(self) -> None:
        """Note that the run has diverged if weights are not finite."""
        flags = [paddle.isfinite(p).all() for p in self._model.parameters()]
        is_finite = float(paddle.stack(flags).all())
        self.has_diverged |= mean_over_processes(is_finite) != 1

    def sync(self) -> None:
        """Put all steps on the disk, in the run's own folder."""
        try:
            self.record.sync(_DISK_SECONDS)
        except sqlite3.Error as error:
            path = str(self._folder / RECORD)
            raise OSError(errno.EIO, str(error), path) from error
        if self.record.directory != self._folder / RECORD:
            raise OSError(f"{self._folder / RECORD} cannot be written")

    def close(self, status: str) -> None:
        """Write the rest, then how the run ended into its ``run.json``."""
        self.sync()
        self.record.close()
        if is_first_process():
            alarms = [
                {"step": a.step, "series": a.series, "text": a.text}
                for a in self.record.alarms
            ]
            update_run_json(
                self._folder,
                alarms=alarms,
                status=status,
                wall_seconds=self.seconds,
            )
