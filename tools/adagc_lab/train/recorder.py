# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collects each step's numbers, and writes them."""

from __future__ import annotations

import dataclasses
import logging
import math
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from adagc_lab.checksums import Description
from adagc_lab.clips import ComparedClip
from adagc_lab.clips.measured import MeasuredClip
from adagc_lab.faults import Fault
from adagc_lab.record.clock import Timer
from adagc_lab.record.files import (
    QUANTITIES,
    RECORD,
    RunWriter,
    update_run_json,
)
from adagc_lab.train.config import RunConfig
from adagc_lab.train.processes import is_first_process, mean_over_processes
from paddle_adagc import load_state, save_state
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.optimizer import innermost, put_into_optimizer
from paddle_adagc.watch import Record
from paddle_adagc.watch.store import STEP_BYTES

logger = logging.getLogger(__name__)

SHADOW = "shadow_state.safetensors"
"""File of a checkpoint: state of the AdaGC that follows another clip."""

_MOMENTS = QUANTITIES[3:]
_NUM_MOST_CLIPPED = 3
_SUMMARIZED = ("global_grad_norm", "clipped_fraction", "nonfinite")
_ROW_BYTES = 420  # of metrics.jsonl, about


class StepRecorder:
    """Every step's loss, learning rate, faults and clip numbers, in order.

    A :class:`.Record` beside it raises alarms, and has every tensor's norm.

    Losses and times stay on the device until :meth:`flush`, so that recording
    makes no step wait; with ``record.tensors`` the norms of every tensor are
    read at every step. With several processes the first one writes, and losses
    are the mean over those that read different data. Set ``optimizer``, whose
    moments are recorded, before the first step. ``has_diverged``: a loss was
    not finite although no fault had corrupted the batch, and then weights were
    not finite.
    """

    def __init__(self, config: RunConfig, model: nn.Layer) -> None:
        self.record: Record | None = None
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
        row = _ROW_BYTES + STEP_BYTES + block
        self.num_bytes = config.train.max_steps * row  # about
        """Of all files but the record's tensors, which are bounded."""
        self._check_size()
        self._model, self._first_step = model, 0
        self._measured: MeasuredClip | None = None
        self._writer: RunWriter | None = None
        self._row: dict[str, Any] = {}
        self._pending: list[tuple[dict[str, Any], np.ndarray | None]] = []
        self._corrupted_steps: set[int] = set()
        self._unlogged: list[float] = []
        self._weights: list[Tensor] = []  # before the step

    def watch(
        self, is_due: Callable[[], bool], checkpoint: str | None = None
    ) -> MeasuredClip | None:
        """Record the optimizer's steps; measure its clip, if that is asked.

        A shadow goes on from the state that a checkpoint has of it.

        It is with ``record.tensors``, in every step, and where the clip has no
        numbers itself, in those that ``is_due`` says. Call it after fleet has
        wrapped the optimizer. Every process calls it.
        """
        folder = Path(self._config.train.output_dir, RECORD)
        self.record = Record(
            folder, self.optimizer, self._model, start=self._first_step
        )
        clip = innermost(self.optimizer)._grad_clip
        is_foreign = not isinstance(clip, ClipGradByAdaGC)
        parallel = self._config.parallel
        # Other ranks have parts of a norm.
        is_whole = parallel.num_processes == parallel.dp
        if self.tensor_names or (is_foreign and is_whole):
            keys = {p.name: key for key, p in self._parameters.items()}
            self._measured = MeasuredClip(clip, keys, is_due)
            put_into_optimizer(self.optimizer, self._measured)
        shadow = self.record.shadow
        if checkpoint and shadow and Path(checkpoint, SHADOW).exists():
            try:
                shadow.set_state_dict(load_state(checkpoint, SHADOW))
            except ValueError as error:  # of a fork with another model
                logger.warning("AdaGC's shadow starts anew: %s", error)
            self.record.forget_updates()
        return self._measured

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
        self._first_step = first_step
        if is_first_process():
            directory = self._config.train.output_dir
            self._writer = RunWriter(directory, self.tensor_names, first_step)

    def begin_step(self, step: int, learning_rate: float) -> None:
        row: dict[str, Any] = {"step": step, "learning_rate": learning_rate}
        row |= {"samples": [], "step_seconds": Timer(), "loss": []}
        self._row = row
        self.set_samples(step)
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
        if self.record is not None:
            self.record.step(_mean(row["loss"]), samples=[*row["samples"]])
        if self.tensor_names:
            row |= self._clip_numbers() | self._step_size()
            tensors = self._tensor_rows()
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
        lowest = [*summary["lowest_h"].items()]
        self.most_clipped = dict(lowest[:_NUM_MOST_CLIPPED])
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
        if self.record is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is raised here
                self.record.flush()
            if self.record.error is not None:
                raise self.record.error
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
        losses = mean_over_processes([float(_mean(r["loss"])) for r in rows])
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

    def _clip_numbers(self) -> dict[str, float]:
        """Return what the clip did in the step, for its row."""
        assert self._measured is not None
        summary = self._measured.summary()
        numbers = {name: summary[name] for name in _SUMMARIZED}
        return {**numbers, "clip_seconds": self._measured.seconds}

    def _tensor_rows(self) -> np.ndarray:
        """Return the step's block for :class:`RunWriter`."""
        assert self._measured is not None
        gamma, rows = _gamma(self._measured.clip), {}
        for key, row in self._measured.tensors.items():
            rows[key] = {**row, "gamma": gamma.get(key, np.nan)}
        block = np.array(
            [
                [rows.get(key, {}).get(name) for key in self._parameters]
                for name in QUANTITIES
            ],
            np.float32,
        )
        if self._config.record.moments:
            block[-len(_MOMENTS) :] = self._moment_norms()
        return block

    def _moment_norms(self) -> np.ndarray:
        rows = []
        for moment in _MOMENTS:
            held = self.optimizer._accumulators[moment]
            values = [held.get(p.name) for p in self._parameters.values()]
            rows.append(np.sqrt(GradientList(values).squared_norms().numpy()))
        return np.stack(rows)

    def close(self, **facts: Any) -> None:
        """Write the rest, then ``facts`` into the run's ``run.json``."""
        record = self.sync()
        alarms = []
        if self.record is not None:
            self.record.close()
            alarms = [
                dataclasses.asdict(a) | {"step": a.step - 1}  # ours begin at 0
                for a in self.record.alarms
            ]
        if self._writer is not None:
            self._writer.close()
            update_run_json(
                self._config.train.output_dir,
                record=record,
                alarms=alarms,
                **facts,
            )


def _gamma(clip: Any) -> dict[str, float]:
    """Return each tensor's gamma, of a clip that has one."""
    if isinstance(clip, ClipGradByAdaGC):
        tensors = clip.metrics()["tensors"]
        return {key: row["gamma"] for key, row in tensors.items()}
    if isinstance(clip, ComparedClip) and "gamma" in clip.vectors:
        state = clip.state_dict()
        return dict(zip(state["keys"], state["state"]["gamma"], strict=True))
    return {}


def _mean(losses: list[Tensor]) -> Any:
    """Mean over the micro-batches."""
    return sum(losses) / len(losses)
