# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rollbacks: back to a checkpoint before an event, without its data.

``skipped.json`` in the run's directory is the list of all rollbacks. Writing it
makes a rollback; the rest follows when the run is started from there, in the
same process or in another: checkpoints that the rollback undid are removed, the
record is cut, and the skipped samples are not drawn.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_adagc.files import atomic_write, atomic_write_json
from paddle_adagc.lab.checksums import check_seal, sealed
from paddle_adagc.lab.record.files import METRICS, read_run_json
from paddle_adagc.lab.train.checkpoints import (
    COMPLETE,
    checkpoints,
    find_checkpoint_fault,
    read_complete,
    remove_checkpoint,
)
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.skips import Skips
from paddle_adagc.stability.alarms import Alarm

SKIPPED = "skipped.json"
_AT_EVERY_STEP = ("loss", "step_seconds")
"""Series that have a value at every step without ``record.tensors``."""


@dataclasses.dataclass(frozen=True)
class Rollback:
    """One rollback."""

    alarm: dict[str, Any]
    """Why, see :class:`Alarm`."""

    steps: int
    """Steps that had been made; those after the checkpoint were undone and
    stand in ``rollback-N.jsonl``, N from 1."""

    checkpoint: int
    """Step of the checkpoint."""

    samples: tuple[int, int]
    """First skipped sample and the one after the last, in the order of the
    training dataset."""

    def __str__(self) -> str:
        """One line for people."""
        first, stop = self.samples
        return (
            f"{Alarm(**self.alarm)}: rolled back from step {self.steps:,} to "
            f"{self.checkpoint:,}; skips the samples {first:,} to {stop - 1:,}"
        )


def read_rollbacks(directory: Path) -> list[Rollback]:
    """Read ``skipped.json``; empty if there is none.

    Raises:
        ValueError: It is damaged.
    """
    path = directory / SKIPPED
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_bytes())
        check_seal(content, ())
        return [_rollback(entry) for entry in content["rollbacks"]]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): the run does not know which samples "
            "it skips; put the file back, or start anew with --overwrite"
        ) from error


def _rollback(entry: Mapping[str, Any]) -> Rollback:
    first, stop = entry["samples"]
    return Rollback(**{**entry, "samples": (first, stop)})


def remove_undone(directory: Path) -> None:
    """Remove the checkpoints that rollbacks have undone.

    Raises:
        ValueError: A checkpoint was made after a rollback that ``skipped.json``
            does not have.
    """
    rollbacks = read_rollbacks(directory)
    for path in checkpoints(directory):
        if not (path / COMPLETE).exists():
            continue
        try:
            facts = read_complete(path)
        except ValueError:  # named when a checkpoint is chosen
            continue
        known = facts.get("rollbacks", 0)
        if known > len(rollbacks):
            raise ValueError(
                f"{directory / SKIPPED} has {len(rollbacks)} rollbacks, "
                f"{path.name} was made after {known}: put the file back, or "
                "start anew with --overwrite"
            )
        if any(r.checkpoint < facts["step"] for r in rollbacks[known:]):
            remove_checkpoint(path)


def roll_back(config: RunConfig, alarm: Alarm) -> Rollback | None:
    """Roll a run back to its newest whole checkpoint before an event.

    Args:
        config: The run.
        alarm: The event.

    Returns:
        None if there is no such checkpoint.
    """
    directory, size = Path(config.train.output_dir), config.global_batch
    begin = _first_step(config, alarm)
    step = _checkpoint_before(directory, begin)
    if step is None:
        step = _origin_before(directory, begin)
    if step is None:
        return None
    rollbacks = read_rollbacks(directory)
    lines = (directory / METRICS).read_bytes().splitlines(True)
    skips = Skips([r.samples for r in rollbacks], size)
    first = skips.batch(max(step, begin - config.monitor.skip_before))
    stop = skips.batch(len(lines) - 1) + 1
    rollback = Rollback(
        alarm=dataclasses.asdict(alarm),
        steps=len(lines),
        checkpoint=step,
        samples=(first * size, stop * size),
    )
    undone = directory / f"rollback-{len(rollbacks) + 1}.jsonl"
    atomic_write(undone, b"".join(lines[step:]))
    entries = [dataclasses.asdict(r) for r in (*rollbacks, rollback)]
    atomic_write_json(directory / SKIPPED, sealed({"rollbacks": entries}))
    return rollback


def undo_end(config: RunConfig, run: Mapping[str, Any]) -> Rollback:
    """Roll back a run that diverged, or that an alarm ended.

    Args:
        config: The run.
        run: Its ``run.json``.

    Raises:
        ValueError: It ended in another way, or no checkpoint is before that.
    """
    directory, status = config.train.output_dir, run.get("status")
    if status == "diverged":
        alarm = _divergence(config, run)
    elif status == "stopped" and run.get("stopped_by"):
        monitor = run["config"]["monitor"]
        series = [*monitor.get("stop_on", []), *monitor.get("rollback_on", [])]
        alarm = [a for a in _alarms(run) if a.series in series][-1]
    else:
        raise ValueError(
            f"--rollback: {directory} is {status or 'no run'}: it neither "
            "diverged nor was stopped by an alarm; leave --rollback out"
        )
    rollback = roll_back(config, alarm)
    if rollback is None:
        raise ValueError(
            f"--rollback: {directory} has no whole checkpoint before {alarm}: "
            "train with train.save_every and a larger train.keep_checkpoints"
        )
    return rollback


def _divergence(config: RunConfig, run: Mapping[str, Any]) -> Alarm:
    """Return the event of a diverged run's last steps.

    Without an alarm of the loss there, the last update broke the weights.
    """
    directory = Path(config.train.output_dir)
    last = len((directory / METRICS).read_bytes().splitlines()) - 1
    for alarm in reversed(_alarms(run)):
        if (
            alarm.series == "loss"
            and alarm.end >= last - config.train.log_every
        ):
            return alarm
    nan = math.nan
    return Alarm("loss", last, last, nan, last, usual=nan, score=math.inf)


def _alarms(run: Mapping[str, Any]) -> list[Alarm]:
    return [Alarm(**alarm) for alarm in run.get("alarms", [])]


def _first_step(config: RunConfig, alarm: Alarm) -> int:
    """Return the earliest step at which the event may have begun."""
    if alarm.series in _AT_EVERY_STEP or config.record.tensors:
        return alarm.start
    return max(0, alarm.start - config.train.log_every + 1)


def _checkpoint_before(directory: Path, begin: int) -> int | None:
    """Return the step of the newest checkpoint whose weights are still good.

    The step that starts with them comes before ``begin``.
    """
    remove_undone(directory)
    for path in checkpoints(directory):
        is_complete = (path / COMPLETE).exists()
        if is_complete and find_checkpoint_fault(path) is None:
            step = int(read_complete(path)["step"])
            if step < begin:
                return step
    return None


def _origin_before(directory: Path, begin: int) -> int | None:
    """Return the step of the checkpoint that a fork started from.

    None if the run is no fork, if the step that starts there does not come
    before ``begin``, or if the checkpoint is not whole any more.
    """
    origin = read_run_json(directory).get("forked_from")
    if not origin or origin["step"] >= begin:
        return None
    checkpoint = Path(origin["run"]) / f"checkpoint-{origin['step']}"
    fault = find_checkpoint_fault(checkpoint, with_record=False)
    return int(origin["step"]) if fault is None else None
