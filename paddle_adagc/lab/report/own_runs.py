# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Group a user's own runs: which are seeds of the same method."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.report.config_facts import flatten, is_per_run
from paddle_adagc.lab.report.experiment import Experiment

_LABELS = {"global_norm": "GlobalGC", "adagc": "AdaGC"}


def compare_runs(paths: Sequence[Path]) -> Experiment:
    """Read runs and group those that differ in the seed alone.

    Groups with the same seeds are methods, paired by seed and named after
    their clip, or after their directory if two have the same clip. Otherwise
    every run stands for itself, without pairs.

    Args:
        paths: Run directories; the first is the one to compare with.

    Raises:
        ValueError: A path is given twice, or a run is damaged or empty.
    """
    root = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    runs: list[RunRecord] = []
    for path in paths:
        name = path.absolute().relative_to(root).as_posix()
        if name in (run.name for run in runs):
            raise ValueError(f"{path} is given twice: give every run once")
        runs.append(dataclasses.replace(_load(path), name=name))
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        options = flatten(run.run.get("config", {}))
        same = {k: v for k, v in options.items() if not is_per_run(k)}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    grouped = [sorted(group, key=_seed) for group in groups.values()]
    seeds = {tuple(map(_seed, group)) for group in grouped}
    paired = len(seeds) == 1 and len({*min(seeds)}) == len(min(seeds))
    if not paired:
        grouped = [[run] for run in runs]
    notes = []
    if not paired:
        notes.append(
            "The runs do not have the same seeds: differences between them are "
            "partly those of the seeds."
        )
    machines = [run.run.get("machine", {}) for run in runs]
    processors = sorted(
        {str(m["processor"]) for m in machines if "processor" in m}
    )
    if len(processors) > 1:
        notes.append(
            f"The runs come from different processors ({', '.join(processors)})"
            ": differences between them are partly those of rounding."
        )
    longest = max(run.num_steps for run in runs)
    labels = _labels(grouped)
    return Experiment(
        title=", ".join(labels),
        description=" ".join(notes),
        runs=dict(zip(labels, grouped, strict=True)),
        skip_steps=min(200, longest // 10),
        directory=root,
        paired=paired,
    )


def _load(path: Path) -> RunRecord:
    run = RunRecord.load(path)
    if not run.num_steps:
        raise ValueError(
            f"{path} holds no step yet: wait for the first one, or resume it"
        )
    return run


def _seed(run: RunRecord) -> int:
    return int(run.run.get("seed", 0))


def _labels(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    clips = [
        str(group[0].run.get("config", {}).get("clip", {}).get("name"))
        for group in groups
    ]
    if len({*clips}) < len(clips):
        return [group[0].name for group in groups]
    return [_LABELS.get(clip, clip) for clip in clips]
