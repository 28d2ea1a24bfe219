# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collects each step's numbers, raises alarms, and writes the record."""

from __future__ import annotations

import dataclasses
import logging
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn.clip import ClipGradBase

from adagc_lab.checksums import Description
from adagc_lab.faults import Fault
from adagc_lab.record.clock import Timer
from adagc_lab.record.files import QUANTITIES, RunWriter, update_run_json
from adagc_lab.record.flight import FlightRecorder
from adagc_lab.record.observe import ObservedClip
from adagc_lab.train.config import RunConfig
from adagc_lab.train.processes import (
    from_first_process,
    is_first_process,
    mean_over_processes,
)
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.stability.alarms import Alarm, Monitor

logger = logging.getLogger(__name__)
_MOMENTS = QUANTITIES[3:]
_NUM_MOST_CLIPPED = 3
_SUMMARIZED = ("global_grad_norm", "clipped_fraction", "nonfinite")
_WATCHED = ("loss", "global_grad_norm", "clipped_fraction", "step_seconds")
_ROW_BYTES = 420  # of metrics.jsonl, about
_GAMMA = QUANTITIES.index("gamma")


class StepRecorder:
    """Every step's loss, learning rate, faults and clip numbers, in order.

    Losses and times stay on the device until :meth:`flush`, so that recording
    makes no step wait; with ``record.tensors`` the norms of every tensor are
    read at every step. With several processes the first one writes, and losses
    are the mean over those with data of their own. Set ``optimizer``, whose
    moments are recorded, before the first step. ``has_diverged``: a loss was
    not finite although no fault had corrupted the batch, and then weights were
    not finite.
    """

    def __init__(self, config: RunConfig, model: nn.Layer) -> None:
        self.watcher = Watcher()
        self.flight = FlightRecorder(config.train.output_dir)
        self.has_diverged = False
        self.most_clipped: dict[str, float] = {}  # of the last summary
        self.optimizer: Any = None
        self._config = config
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if not parameter.stop_gradient
        }
        self.tensor_names = [*self._parameters] if config.record.tensors else []
        block = 4 * len(QUANTITIES) * len(self.tensor_names)
        self.num_bytes = config.train.max_steps * (_ROW_BYTES + block)  # about
        self._check_size()
        self._observed: ObservedClip | None = None
        self._writer: RunWriter | None = None
        self._row: dict[str, Any] = {}
        self._pending: list[tuple[dict[str, Any], np.ndarray | None]] = []
        self._corrupted_steps: set[int] = set()
        self._stuck: set[str] = set()
        self._unlogged: list[float] = []
        self._weights: list[Tensor] = []  # before the step

    def observed(self, clip: ClipGradBase) -> ClipGradBase:
        """Wrap the clip to measure it, if tensors are recorded."""
        self.flight.clip = clip
        if self.tensor_names:
            self._observed = ObservedClip(clip, self._parameters)
        return self._observed or clip

    def _check_size(self) -> None:
        folder = Path(self._config.train.output_dir)
        # What the run has recorded already lies there.
        room = sum(f.stat().st_size for f in folder.glob("*") if f.is_file())
        places = (folder, *folder.absolute().parents)
        disk = next(place for place in places if place.exists())
        room += shutil.disk_usage(disk).free
        if self.num_bytes > room:
            raise ValueError(
                f"the record would become {self.num_bytes / 1e9:,.1f} GB "
                f"({self._config.train.max_steps:,} steps, "
                f"{len(self.tensor_names):,} tensors in each), more than the "
                f"{room / 1e9:,.1f} GB free at {disk}: set "
                "record.tensors=false and record.moments=false, or give "
                "another train.output_dir"
            )

    def open(self, first_step: int) -> None:
        """Start writing; cut off earlier records from ``first_step`` on."""
        if is_first_process():
            directory = self._config.train.output_dir
            self._writer = RunWriter(directory, self.tensor_names, first_step)

    def begin_step(self, step: int, learning_rate: float) -> None:
        row: dict[str, Any] = {"step": step, "learning_rate": learning_rate}
        row |= {"samples": [], "step_seconds": Timer(), "loss": []}
        self._row = row
        self.set_samples(step)
        self.flight.begin(row)
        if self._config.record.moments:
            self._weights = [p.clone() for p in self._parameters.values()]

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
        """Finish the step, if one is in progress, with more numbers of it."""
        if not self._row:
            return
        row, tensors, self._row = self._row, None, {}
        row["step_seconds"].stop()
        row |= measures
        self.flight.end()
        if self._observed is not None:
            row |= self._observed.step_metrics() | self._step_size()
            tensors = self._observed.tensor_rows(self._moment_norms())
            values = tensors[_GAMMA].tolist()
            gammas = dict(zip(self._parameters, values, strict=True))
            self.watcher.see_gammas(row["step"], gammas)
        self._pending.append((row, tensors))

    def log_line(self) -> dict[str, float]:
        """Return the mean loss since the last call, and the learning rate."""
        self._read_losses()
        losses, self._unlogged = self._unlogged, []
        rate = self._pending[-1][0]["learning_rate"]
        return {"loss": sum(losses) / len(losses), "learning_rate": rate}

    def add_summary(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Add the clip's summary to the last step's record, and return it."""
        if not summary:
            return summary
        row = self._pending[-1][0]
        for name in _SUMMARIZED:
            row.setdefault(name, summary[name])
        total = self.watcher.earlier_total + summary["nonfinite_total"]
        row["nonfinite_total"] = total
        if self._observed is None:
            tensors = summary.get("tensors", {})
            self.watcher.see_gammas(
                row["step"],
                {k: x["gamma"] for k, x in tensors.items() if "gamma" in x},
            )
        lowest = [*summary["lowest_h"].items()]
        self.most_clipped = dict(lowest[:_NUM_MOST_CLIPPED])
        row["most_clipped"] = self.most_clipped
        if new := {*summary.get("stuck", ())} - self._stuck:
            row["stuck"] = sorted(new)
            self._stuck |= new
        return summary

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
        begun = self.watcher.watch(rows, every_step=self._observed is not None)
        self.flight.to_host()
        reasons = [str(alarm) for alarm in begun]
        if is_first_process():
            for reason in reasons:
                logger.warning("alarm: %s", reason)
        if self.has_diverged:
            reasons.append("weights are not finite")
        if reasons:
            self.flight.write("alarm", "; ".join(reasons))
        if self._writer is not None:
            for row, tensors in self._pending:
                self._writer.append(row, tensors)
            self._writer.flush()
        self._pending = []

    def sync(self) -> Description:
        """Flush, put the record on the disk, and describe its files.

        The description is empty where this process does not write.
        """
        self.flush()
        return {} if self._writer is None else self._writer.sync()

    def _read_losses(self) -> None:
        """Replace what is still on the device by numbers."""
        rows = [r for r, _ in self._pending if isinstance(r["loss"], list)]
        losses = mean_over_processes([_mean(row["loss"]) for row in rows])
        for row, loss in zip(rows, losses, strict=True):
            row["loss"] = loss
            row["step_seconds"] = row["step_seconds"].seconds()
        self._unlogged += losses

    def weights_are_finite(self) -> bool:
        """Tell whether they are on all processes, which all call this."""
        flags = [paddle.isfinite(p).all() for p in self._parameters.values()]
        finite = not flags or bool(paddle.stack(flags).all())
        return mean_over_processes([float(finite)]) == [1.0]

    @paddle.no_grad()
    def _step_size(self) -> dict[str, float]:
        """L2 norm of the step's update; root of the second moments' sum."""
        if not self._config.record.moments:
            return {}
        after = self._parameters.values()
        update = [p - w for p, w in zip(after, self._weights, strict=True)]
        moments = self.optimizer._accumulators[_MOMENTS[1]].values()
        total = sum(float(moment.sum()) for moment in moments)
        norm = GradientList(update).squared_norms().sum()
        return {
            "update_norm": math.sqrt(float(norm)),
            "second_moment_root": math.sqrt(total),
        }

    def _moment_norms(self) -> np.ndarray | None:
        if not self._config.record.moments:
            return None
        rows = []
        for moment in _MOMENTS:
            held = self.optimizer._accumulators[moment]
            values = [held.get(p.name) for p in self._parameters.values()]
            rows.append(np.sqrt(GradientList(values).squared_norms().numpy()))
        return np.stack(rows)

    def close(self, **facts: Any) -> None:
        """Write the rest, then ``facts`` into the run's ``run.json``."""
        record = self.sync()
        if self._writer is not None:
            self._writer.close()
            update_run_json(
                self._config.train.output_dir,
                record=record,
                alarms=self.watcher.alarms,
                **facts,
            )


def _mean(losses: list[Tensor]) -> float | None:
    """Mean over the micro-batches; None if this process knows none."""
    return sum(map(float, losses)) / len(losses) if losses else None


class Watcher:
    """Hand the record's rows to a :class:`Monitor`."""

    def __init__(self) -> None:
        self.earlier_total = 0  # nonfinite_total of earlier processes
        self._last_total = 0
        self._monitor = Monitor()
        self._gammas: dict[str, float] = {}
        self._changes: dict[int, float] = {}

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """All alarms of the run as JSON values."""
        return [dataclasses.asdict(alarm) for alarm in self._monitor.alarms]

    def see_gammas(self, step: int, gammas: Mapping[str, float]) -> None:
        """Compare a step's gammas with those seen last; not finite is none."""
        known = {k: x for k, x in gammas.items() if 0 < x < math.inf}
        if changes := [
            abs(math.log(x / self._gammas[key]))
            for key, x in known.items()
            if key in self._gammas
        ]:
            self._changes[step] = max(changes)
        self._gammas |= known

    def watch(
        self, rows: Iterable[dict[str, Any]], *, every_step: bool
    ) -> list[Alarm]:
        """Judge rows; add ``alarms`` to those in which an event begins.

        Every process calls this; what the first one finds counts. With
        ``every_step`` every row has the clip's numbers, not only logged ones.
        """
        by_step = {row["step"]: row for row in rows}
        found = self._monitor.update(
            (step, self._values(row, every_step))
            for step, row in by_step.items()
        )
        begun = from_first_process(lambda: found)
        for alarm in begun:
            values = dataclasses.asdict(alarm)
            by_step[alarm.start].setdefault("alarms", []).append(values)
        return begun

    def _values(
        self, row: Mapping[str, Any], every_step: bool
    ) -> dict[str, float]:
        values = {name: row[name] for name in _WATCHED if name in row}
        total = row.get("nonfinite_total", self._last_total)
        if every_step and "nonfinite" in row:
            values["nonfinite"] = row["nonfinite"]
        elif "nonfinite_total" in row:
            values["nonfinite"] = total - self._last_total
        self._last_total = total
        if "stuck" in row:
            values["stuck"] = len(row["stuck"])
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as JSON values."""
        return {
            "monitor": self._monitor.state_dict(),
            "nonfinite_total": self._last_total,
            "gammas": self._gammas,
        }

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume; alarms of a version with other rules start afresh."""
        try:
            self._monitor.set_state_dict(state["monitor"])
        except ValueError as error:
            logger.warning("alarms start afresh: %s", error)
        self.earlier_total = self._last_total = state["nonfinite_total"]
        self._gammas = dict(state["gammas"])
