# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collects each step's numbers, and writes them."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from adagc_lab.faults import Fault
from adagc_lab.record.clock import Timer
from adagc_lab.record.files import RECORD, RunWriter, update_run_json
from adagc_lab.train.config import RunConfig
from adagc_lab.train.processes import is_first_process, mean_over_processes
from adagc_lab.train.tensors import TensorColumns
from paddle_adagc import load_state, save_state
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.optimizer import innermost
from paddle_adagc.watch import Record

logger = logging.getLogger(__name__)

SHADOW = "shadow_state.safetensors"
"""File of a checkpoint: state of the AdaGC that follows another clip."""

_NUM_MOST_CLIPPED = 3
SUMMARIZED = ("global_grad_norm", "clipped_fraction", "nonfinite")
"""What the record has of the clip's summary."""


class StepRecorder:
    """Every step's loss, learning rate, faults and clip numbers, in order.

    A :class:`.Record` beside it raises alarms, and has every tensor's norm.

    Losses and times stay on the device until :meth:`flush`, so that recording
    makes no step wait; with ``record.tensors`` the norms of every tensor are
    read at every step. With several processes the first one writes, and losses
    are the mean over those that read different data. ``has_diverged``: a loss
    was not finite although no fault had corrupted the batch, and then weights
    were not finite.
    """

    def __init__(self, config: RunConfig, model: nn.Layer) -> None:
        self.record: Record | None = None
        self.has_diverged = False
        self.most_clipped: dict[str, float] = {}  # of the last summary
        self._config, self._model = config, model
        self._tensors = TensorColumns(config.record, model)
        self._writer: RunWriter | None = None
        self._started = 0.0
        self._row: dict[str, Any] = {}
        self._pending: list[tuple[dict[str, Any], np.ndarray | None]] = []
        self._corrupted_steps: set[int] = set()
        self._unlogged: list[float] = []

    @property
    def tensor_names(self) -> list[str]:
        """Names of the tensors that are recorded; empty: none is."""
        return self._tensors.names

    @property
    def seconds(self) -> float:
        """Training seconds so far, earlier processes included."""
        return time.perf_counter() - self._started

    @property
    def is_in_step(self) -> bool:
        """Whether a step has begun and not ended."""
        return bool(self._row)

    def open(
        self,
        optimizer: Any,
        first_step: int,
        is_due: Callable[[], bool],
        seconds: float = 0.0,
    ) -> None:
        """Start writing; cut off earlier records from ``first_step`` on.

        With ``record.tensors``, and where the optimizer's clip has no numbers
        itself, the clip is measured in the steps that ``is_due`` says. Every
        process calls it, after fleet has wrapped the optimizer. ``seconds``:
        those of earlier processes.
        """
        folder, parallel = self._config.train.output_dir, self._config.parallel
        self._started = time.perf_counter() - seconds
        if is_first_process():
            self._writer = RunWriter(folder, self.tensor_names, first_step)
        optimizer = innermost(optimizer)
        self.record = Record(
            Path(folder, RECORD), optimizer, self._model, start=first_step
        )
        is_foreign = not isinstance(optimizer._grad_clip, ClipGradByAdaGC)
        # Other ranks have parts of a norm.
        is_whole = parallel.num_processes == parallel.dp
        if self.tensor_names or (is_foreign and is_whole):
            self._tensors.measure(optimizer, is_due)

    def load_shadow(self, checkpoint: Path) -> None:
        """Let the shadow go on from the state that a checkpoint has of it."""
        assert self.record is not None
        shadow = self.record.shadow
        if shadow is not None and (checkpoint / SHADOW).exists():
            try:
                shadow.set_state_dict(load_state(checkpoint, SHADOW))
            except ValueError as error:  # of a fork with another model
                logger.warning("AdaGC's shadow starts anew: %s", error)
            self.record.forget_updates()

    def save_shadow(self, checkpoint: Path) -> None:
        """Save the state of AdaGC's shadow; every process calls this."""
        shadow = self.record.shadow if self.record is not None else None
        if shadow is not None:
            state = shadow.full_state_dict()
            if is_first_process():
                save_state(state, checkpoint, SHADOW)

    def leave(self, error: BaseException) -> None:
        """Write this process' steps after an error; log one of that."""
        if self.record is not None:
            try:
                self.record.leave(error)
            except Exception as other:
                logger.warning("the last steps were not written: %s", other)

    def begin_step(self, step: int, learning_rate: float) -> None:
        row: dict[str, Any] = {"step": step, "learning_rate": learning_rate}
        row |= {"samples": [], "step_seconds": Timer(), "loss": []}
        self._row = row
        self.set_samples(step)
        self._tensors.begin_step()

    def set_samples(self, batch: int) -> None:
        """Record which samples of the training dataset make up the batch."""
        size = self._config.global_batch
        self._row["samples"][:] = batch * size, (batch + 1) * size

    def add_loss(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, a scalar on the device."""
        self._row["loss"].append(loss)

    def add_fault(self, fault: Fault, tensors: Sequence[str] = ()) -> None:
        """Add a fault, with the tensors that it has hit."""
        entry = {"kind": fault.kind, "tensors": [*tensors]}
        self._row.setdefault("faults", []).append(entry)
        if fault.target != "gradient":
            self._corrupted_steps.add(self._row["step"])

    def add_evaluation(self, loss: float, **measures: float) -> None:
        """Add the validation loss and other measures to the last step."""
        if self._pending:
            self._pending[-1][0].update(eval_loss=loss, **measures)

    def end_step(self, **measures: float) -> None:
        """Finish the step in progress with more numbers of it."""
        row, block, self._row = self._row, None, {}
        row["step_seconds"].stop()
        row |= measures
        if self.record is not None:
            self.record.step(_mean(row["loss"]), samples=[*row["samples"]])
        if self.tensor_names:
            numbers, block = self._tensors.row()
            row |= self._summarized(self.summary()) | numbers
        self._pending.append((row, block))

    def log_line(self) -> dict[str, float]:
        """Return the mean loss since the last call, and the learning rate."""
        self._read_losses()
        losses, self._unlogged = self._unlogged, []
        rate = self._pending[-1][0]["learning_rate"]
        return {"loss": sum(losses) / len(losses), "learning_rate": rate}

    def summary(self) -> dict[str, Any]:
        """Return what the clip did in the last step, if it was measured."""
        measured = self._tensors.measured
        return {} if measured is None else measured.summary()

    def add_summary(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Add the clip's summary to the last step's record, and return it."""
        if summary:
            row, numbers = self._pending[-1][0], self._summarized(summary)
            row.update({**numbers, **row})
            lowest = [*summary["lowest_h"].items()]
            self.most_clipped = dict(lowest[:_NUM_MOST_CLIPPED])
        return summary

    def _summarized(self, summary: dict[str, Any]) -> dict[str, float]:
        return {name: summary[name] for name in SUMMARIZED}

    def flush(self) -> None:
        """Read the losses since the last flush and write their steps.

        Every process calls this. Only after a loss that is not finite are the
        weights looked at.
        """
        self._read_losses()
        rows = [row for row, _ in self._pending]
        if any(
            not math.isfinite(row["loss"])
            and row["step"] not in self._corrupted_steps
            for row in rows
        ):
            self.has_diverged |= not self.weights_are_finite()
        if self.record is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is raised here
                self.record.flush()
            if self.record.error is not None:
                raise self.record.error
        if self._writer is not None:
            for row, block in self._pending:
                self._writer.append(row, block)
            self._writer.flush()
        self._pending = []

    def sync(self) -> None:
        """Flush, and put the record on the disk."""
        self.flush()
        if self._writer is not None:
            self._writer.sync()

    def _read_losses(self) -> None:
        """Replace what is still on the device by numbers."""
        rows = [r for r, _ in self._pending if isinstance(r["loss"], list)]
        losses = mean_over_processes([float(_mean(r["loss"])) for r in rows])
        for row, loss in zip(rows, losses, strict=True):
            row["loss"] = loss
            row["step_seconds"] = row["step_seconds"].seconds()
        self._unlogged += losses

    def weights_are_finite(self) -> bool:
        """Tell whether they are on all processes, which all call this."""
        parameters = self._tensors.parameters.values()
        flags = [paddle.isfinite(p).all() for p in parameters]
        finite = not flags or bool(paddle.stack(flags).all())
        return mean_over_processes([float(finite)]) == [1.0]

    def close(self, status: str) -> None:
        """Write the rest, then how the run ended into its ``run.json``."""
        self.sync()
        alarms: list[dict[str, Any]] = []
        if self.record is not None:
            self.record.close()
            for alarm in self.record.alarms:
                ours = dataclasses.replace(alarm, step=alarm.step - 1)  # from 0
                alarms.append({**dataclasses.asdict(ours), "text": ours.text})
        if self._writer is not None:
            self._writer.close()
            update_run_json(
                self._config.train.output_dir,
                alarms=alarms,
                status=status,
                wall_seconds=self.seconds,
            )


def _mean(losses: list[Tensor]) -> Any:
    """Mean over the micro-batches."""
    return sum(losses) / len(losses)
