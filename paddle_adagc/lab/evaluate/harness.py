# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness over a decoder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from paddle_adagc.checks import suggestion
from paddle_adagc.lab.evaluate.language_model import DecoderLM

_BOOTSTRAP_SAMPLES = 1000  # for metrics that have no closed standard error


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """One metric of one task."""

    task: str
    """Name in the harness, of a task or of a group."""

    metric: str
    """Such as ``acc``, or ``exact_match,strict-match`` with the filter of the
    answers, where there is one."""

    num_fewshot: int
    value: float
    stderr: float | None
    """Standard error of `value`; None where the harness has none."""

    num_samples: int | None
    """Scored examples; None for a group."""


def find_tasks(
    tasks: Sequence[str], include_path: str | os.PathLike[str] | None = None
) -> TaskManager:
    """Look up tasks; the harness' own files are read only if needed.

    Args:
        tasks: Names of tasks, groups or tags.
        include_path: Directory with your own task files (YAML).

    Raises:
        ValueError: An unknown name (the nearest one is given).
        FileNotFoundError: There is no such directory.
    """
    if include_path is not None:
        if not os.path.isdir(include_path):
            raise FileNotFoundError(f"there is no directory {include_path}")
        own = TaskManager(
            include_path=str(include_path), include_defaults=False
        )
        if set(tasks) <= set(own.all_tasks):
            return own
    manager = TaskManager(include_path=include_path and str(include_path))
    for task in tasks:
        if task not in manager.all_tasks:
            raise ValueError(
                f"unknown task {task!r}{suggestion(task, manager.all_tasks)}"
            )
    return manager


def evaluate_tasks(
    model: DecoderLM,
    tasks: Sequence[str],
    manager: TaskManager,
    *,
    num_fewshot: int = 0,
    limit: int | None = None,
) -> list[TaskScore]:
    """Run tasks.

    Args:
        model: The decoder.
        tasks: Names that `manager` knows.
        manager: Result of :func:`find_tasks`.
        num_fewshot: Solved examples before each question; a task whose file
            fixes it to 0 keeps that.
        limit: Score the first examples of each task alone (for a trial).

    Returns:
        Every metric of every task and group that was asked for; of a tag,
        those of its tasks.
    """
    found = simple_evaluate(
        model=model,
        tasks=[*tasks],
        num_fewshot=num_fewshot,
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=_BOOTSTRAP_SAMPLES,
    )
    assert found is not None
    results = found["results"]
    parts = {
        name for names in found["group_subtasks"].values() for name in names
    }
    return [
        score
        for name in results
        if name in tasks or name not in parts
        for score in _scores(name, results[name], found)
    ]


def _scores(
    name: str, result: Mapping[str, Any], found: Mapping[str, Any]
) -> list[TaskScore]:
    samples = found["n-samples"].get(name, {}).get("effective")
    scores = []
    for key, value in result.items():
        metric, _, answers = key.partition(",")
        if metric.endswith("_stderr") or not isinstance(value, float):
            continue
        stderr = result.get(f"{metric}_stderr,{answers}")
        scores.append(
            TaskScore(
                task=name,
                metric=metric if answers in ("", "none") else key,
                num_fewshot=int(found["n-shot"].get(name, 0)),
                value=value,
                stderr=stderr if isinstance(stderr, float) else None,
                num_samples=samples,
            )
        )
    return scores
