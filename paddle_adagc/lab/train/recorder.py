# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collects each step's numbers and writes them to the run's record."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from paddle import Tensor, nn
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.gradients import squared_norms
from paddle_adagc.lab.checksums import Description
from paddle_adagc.lab.faults import Fault
from paddle_adagc.lab.record.clock import Timer
from paddle_adagc.lab.record.files import (
    QUANTITIES,
    RunWriter,
    update_run_json,
)
from paddle_adagc.lab.record.observe import ObservedClip
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.flight import FlightRecorder
from paddle_adagc.lab.train.processes import (
    is_first_process,
    mean_over_processes,
)
from paddle_adagc.lab.train.watching import Watcher, are_finite
from paddle_adagc.stability.monitor import SpikeMonitor

logger = logging.getLogger(__name__)
_MOMENTS = ("moment1", "moment2")
_NUM_MOST_CLIPPED = 3
_SUMMARIZED = ("global_grad_norm", "clipped_fraction", "nonfinite")
_GAMMA = QUANTITIES.index("gamma")


class StepRecorder:
    """Every step's loss, learning rate, faults and clip numbers, in order.

    Losses and times stay on the device until :meth:`flush`, so that recording
    makes no step wait; with ``record.tensors`` the norms of every tensor are
    read at every step. With several processes the first one writes, and losses
    are the mean over those with data of their own.

    Attributes:
        monitor: Follows the losses and reports spikes.
        watcher: Follows all series and raises alarms.
        has_diverged: A loss was not finite although no fault had corrupted the
            batch or an activation, and then weights were not finite.
        flight: Keeps the last steps in memory, see :class:`FlightRecorder`.
        optimizer: Optimizer whose moments are recorded; set it before the first
            step.
    """

    def __init__(self, config: RunConfig, model: nn.Layer) -> None:
        self.monitor = SpikeMonitor()
        self.watcher = Watcher(config.monitor.stop_on)
        self.flight = FlightRecorder(
            config.train.output_dir, config.monitor.flight_steps
        )
        self.has_diverged = False
        self.optimizer: Any = None
        self._config = config
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if not parameter.stop_gradient
        }
        self._observed: ObservedClip | None = None
        self._writer: RunWriter | None = None
        self._pending: list[tuple[dict[str, Any], np.ndarray | None]] = []
        self._row: dict[str, Any] = {}
        self._losses: list[Tensor] = []
        self._faults: list[tuple[Fault, Sequence[str]]] = []
        self._corrupted_steps: set[int] = set()
        self._timer: Timer | None = None
        self._unlogged: list[float] = []

    def observed(self, clip: ClipGradBase | None) -> ClipGradBase | None:
        """Wrap the clip to measure it, if tensors are recorded."""
        self.flight.clip = clip
        if clip is None or not self._config.record.tensors:
            return clip
        self._observed = ObservedClip(clip, self._parameters)
        return self._observed

    @property
    def tensor_names(self) -> list[str]:
        """Tensors that are recorded."""
        return [*self._parameters] if self._config.record.tensors else []

    def open(self, first_step: int) -> None:
        """Start writing; cut off earlier records from ``first_step`` on."""
        if not is_first_process():
            return
        self._writer = RunWriter(
            self._config.train.output_dir, self.tensor_names, first_step
        )

    def begin_step(self, step: int, learning_rate: float) -> None:
        """Begin an optimizer step at its learning rate."""
        self._row = {
            "step": step,
            "learning_rate": learning_rate,
            "samples": [],
        }
        self.set_samples(step)
        self._losses = []
        self._faults = []
        self.flight.begin(
            step, learning_rate, self._row["samples"], self._losses
        )
        self._timer = Timer()

    def set_samples(self, batch: int) -> None:
        """Say which samples make the batch: ``"samples": [first, stop]``.

        Args:
            batch: Index of the batch in the order of the training dataset, over
                all processes.
        """
        size = self._config.global_batch
        self._row["samples"][:] = batch * size, (batch + 1) * size

    def add_loss(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, a scalar on the device."""
        self._losses.append(loss)

    def add_fault(self, fault: Fault, tensors: Sequence[str] = ()) -> None:
        """Add a fault that this step gets.

        Args:
            fault: The fault.
            tensors: Names of the tensors hit; the list may grow until the step
                ends.
        """
        self._faults.append((fault, tensors))

    def add_evaluation(self, loss: float, **measures: float) -> None:
        """Add the validation loss and other measures to the last step."""
        if self._pending:
            self._pending[-1][0].update(eval_loss=loss, **measures)

    def end_step(self, **measures: float) -> None:
        """Finish the optimizer step, if one is in progress.

        Args:
            **measures: More numbers of the step, for its line.
        """
        if not self._row:
            return
        self._row.update(measures)
        assert self._timer is not None
        self._timer.stop()
        self._row["step_seconds"] = self._timer
        self._row["loss"] = self._losses
        if self._faults:
            self._row["faults"] = [f.record(names) for f, names in self._faults]
        if any(fault.target != "gradient" for fault, _ in self._faults):
            self._corrupted_steps.add(self._row["step"])
        self.flight.end()
        tensors = None
        if self._observed is not None:
            self._row.update(self._observed.step_metrics())
            tensors = self._observed.tensor_rows(self._moment_norms())
            gammas = zip(
                self._parameters, tensors[_GAMMA].tolist(), strict=True
            )
            self.watcher.see_gammas(self._row["step"], dict(gammas))
        self._pending.append((self._row, tensors))
        self._row = {}

    def log_line(self) -> dict[str, float]:
        """Return loss and learning rate for the Trainer's log.

        The loss is the mean since the last call, over all processes, each of
        which has to call this.
        """
        self._read_losses()
        losses, self._unlogged = self._unlogged, []
        rate = self._pending[-1][0]["learning_rate"]
        return {"loss": sum(losses) / len(losses), "learning_rate": rate}

    def add_summary(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Add the clip's summary to the last step's record.

        Args:
            summary: From the clip; empty if it gives none.

        Returns:
            The summary, or what was measured outside of the clip; empty
            without both.
        """
        if not summary and self._observed is not None:
            summary = self._observed.summary()
        if summary:
            row = self._pending[-1][0]
            for name in _SUMMARIZED:
                row.setdefault(name, summary[name])
            total = self.watcher.whole_total(summary["nonfinite_total"])
            row["nonfinite_total"] = total
            if self._observed is None:
                self.watcher.see_gammas(row["step"], _gammas(summary))
            lowest = [*summary["lowest_h"].items()]
            row["most_clipped"] = dict(lowest[:_NUM_MOST_CLIPPED])
        return summary

    def flush(self) -> None:
        """Read the losses since the last flush and write their steps.

        Every process calls this. Only after a loss that is not finite are the
        weights looked at.
        """
        self._read_losses()
        rows = [row for row, _ in self._pending]
        suspicious = [self._is_suspicious(row) for row in rows]
        if any(suspicious) and not self.weights_are_finite():
            self.has_diverged = True
        begun = self.watcher.watch(rows, every_step=self._observed is not None)
        self.flight.to_host()
        reasons = [str(alarm) for alarm in begun]
        if begun and rows:
            self._log_alarms(reasons, rows[0]["step"], rows[-1]["step"])
        if self.has_diverged:
            reasons.append("weights are not finite")
        if reasons:
            self.flight.write("alarm", "; ".join(reasons))
        for row, tensors in self._pending:
            if self._writer is not None:
                self._writer.append(row, tensors)
        self._pending = []
        if self._writer is not None:
            self._writer.flush()

    def _log_alarms(self, reasons: list[str], first: int, last: int) -> None:
        worst = self.flight.worst_tensors(first, last)
        if is_first_process():
            for reason in reasons:
                logger.warning("alarm: %s", reason)
            if worst:
                logger.warning("%s", worst)

    def sync(self) -> Description:
        """Flush, and put the record on the disk.

        Returns:
            The files' sizes and checksums; empty where this process does not
            write.
        """
        self.flush()
        return {} if self._writer is None else self._writer.sync()

    def _read_losses(self) -> None:
        """Replace what is still on the device by numbers."""
        rows = [
            row for row, _ in self._pending if isinstance(row["loss"], list)
        ]
        losses = mean_over_processes([_mean(row["loss"]) for row in rows])
        for row, loss in zip(rows, losses, strict=True):
            row["loss"] = loss
            row["step_seconds"] = row["step_seconds"].seconds()
        self._unlogged += losses

    def weights_are_finite(self) -> bool:
        """Tell whether they are on all processes, which all call this."""
        return are_finite(self._parameters.values())

    def _is_suspicious(self, row: dict[str, Any]) -> bool:
        """Take a step's loss; tell whether the weights may have become NaN."""
        spike = self.monitor.update(row["loss"])
        if spike is not None and spike.starts_event and is_first_process():
            logger.warning("loss spike: %s", spike)
        is_corrupted = row["step"] in self._corrupted_steps
        return not math.isfinite(row["loss"]) and not is_corrupted

    def _moment_norms(self) -> np.ndarray | None:
        if not self._config.record.moments:
            return None
        rows = []
        for moment in _MOMENTS:
            held = self.optimizer._accumulators[moment]
            values = [held.get(p.name) for p in self._parameters.values()]
            rows.append(np.sqrt(squared_norms(values).numpy()))
        return np.stack(rows)

    def stop(self) -> Description:
        """Write the rest, and close the record; see :meth:`sync`."""
        record = self.sync()
        if self._writer is not None:
            self._writer.close()
        return record

    def close(self, **facts: Any) -> None:
        """Write the rest, then ``facts`` into the run's ``run.json``."""
        record = self.stop()
        if self._writer is None:
            return
        directory = self._config.train.output_dir
        alarm = self.watcher.stopped_by
        update_run_json(
            directory,
            record=record,
            alarms=self.watcher.alarms,
            stopped_by=None if alarm is None else str(alarm),
            **facts,
        )


def _gammas(summary: dict[str, Any]) -> dict[str, float]:
    tensors = summary.get("tensors", {})
    return {k: x["gamma"] for k, x in tensors.items() if "gamma" in x}


def _mean(losses: list[Tensor]) -> float | None:
    """Mean over the micro-batches; None if this process knows none."""
    if not losses:
        return None
    return sum(float(loss) for loss in losses) / len(losses)
