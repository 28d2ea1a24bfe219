# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is said of a run that has ended, from its record."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.record.rows import read_rows
from paddle_adagc.lab.report.judged import judged_steps
from paddle_adagc.lab.train.console import short_name
from paddle_adagc.stability.alarms import Alarm
from paddle_adagc.stability.spike_score import spike_score

NUM_LAST = 10
"""The last loss is the median of so many steps."""

_NUM_NAMED = 3


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """How a run ended."""

    lines: list[str]
    is_sound: bool
    """The last loss is finite and not above the first one."""


def summarise_run(directory: str | os.PathLike[str]) -> RunSummary:
    """Describe a run that has ended.

    Steps whose batch or activations a fault corrupted do not count.

    Args:
        directory: Of the run.
    """
    path, record = Path(directory), RunRecord.load(directory)
    status = record.run["status"]
    steps = judged_steps(record, 0)
    loss = record.loss[steps]
    lines = [f"{status}: {_length(record)}"]
    problem = "no step to judge" if not len(loss) else ""
    if len(loss):
        lines.append(_losses(record, loss, steps))
        problem = _problem(record.run, loss)
        lines.append(_spikes(path, loss, steps))
    if alarms := record.run.get("alarms"):
        lines.append(_alarms(alarms))
    lines += _most_clipped(path)
    lines.append(f"files: {path} ({', '.join(_files(path))})")
    lines.append(f"next: python tools/report.py {path}")
    if problem:
        lines.append(problem)
    return RunSummary(lines, not problem)


def _length(record: RunRecord) -> str:
    seconds = tqdm.format_interval(record.run["wall_seconds"])
    return f"{record.num_steps:,} steps in {seconds}"


def _last(loss: np.ndarray) -> float:
    """Median of the last losses, of the second half if they are few."""
    return float(np.median(loss[-max(1, min(NUM_LAST, len(loss) // 2)) :]))


def _losses(record: RunRecord, loss: np.ndarray, steps: np.ndarray) -> str:
    text = f"loss: first {loss[0]:.4g}, last {_last(loss):.4g}"
    if np.isfinite(loss).any():
        best = int(np.nanargmin(np.where(np.isfinite(loss), loss, np.nan)))
        text += f", best {loss[best]:.4g} at step {steps[best]:,}"
    evaluated = record.metrics.get("eval_loss", np.zeros(0))
    evaluated = evaluated[~np.isnan(evaluated)]
    if len(evaluated):
        text += f"; validation: last {evaluated[-1]:.4g}"
        text += f", best {evaluated.min():.4g}"
    return text


def _problem(run: Mapping[str, Any], loss: np.ndarray) -> str:
    """Say what is wrong with the losses; empty if nothing is."""
    remedy = "lower schedule.learning_rate, or clip harder"
    if alarm := run.get("stopped_by"):
        return (
            f"stopped by an alarm, {alarm}: the same command with "
            "monitor.stop_on=[] resumes from the last checkpoint"
        )
    if run["status"] == "diverged" or not np.isfinite(loss[-1]):
        return (
            f"the loss is not finite any more: {remedy}; --fork starts from a "
            "checkpoint before"
        )
    first, last = float(loss[0]), _last(loss)
    if len(loss) > 1 and last > first:
        return (
            f"the loss ended at {last:.4g}, above its first value "
            f"{first:.4g}: {remedy}"
        )
    return ""


def _spikes(path: Path, loss: np.ndarray, steps: np.ndarray) -> str:
    score = spike_score(loss)
    if not score.num_judged and not score.num_spikes:
        return "spikes: – (a step is judged by the 1,000 steps before it)"
    text = f"spikes: {score.num_spikes} in {score.num_judged:,} judged steps"
    if score.num_spikes:
        first = steps[score.indices[0]]
        text += f": python tools/inspect_run.py {path} --step {first}"
    return text


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(alarm["series"] for alarm in alarms)
    parts = [f"{name} {count}" for name, count in counts.most_common()]
    first = Alarm(**alarms[0])
    return f"alarms: {', '.join(parts)}; the first: {first}"


def _most_clipped(path: Path) -> list[str]:
    """Name the tensors with the lowest h of the logged steps."""
    lowest: dict[str, tuple[float, int]] = {}
    for row in read_rows(path / "metrics.jsonl"):
        for key, h in row.get("most_clipped", {}).items():
            found = (h, row["step"])
            lowest[key] = min(found, lowest.get(key, found))
    named = sorted(lowest.items(), key=lambda item: item[1])[:_NUM_NAMED]
    texts = [
        f"{short_name(key)} h {h:.2g} at step {step:,}"
        for key, (h, step) in named
    ]
    return [f"most clipped: {'; '.join(texts)}"] if texts else []


def _files(path: Path) -> list[str]:
    names = ["run.json", "metrics.jsonl"]
    if (path / "tensors.f32").stat().st_size:
        names.append("tensors.f32")
    if (path / "logs").exists():
        names.append("logs")
    checkpoints = [found.name for found in path.glob("checkpoint-*")]
    return names + sorted(checkpoints, key=lambda name: (len(name), name))
