# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""All runs of all results, found by what they trained and not by who asked.

A rule asks for an :class:`Arm`, the config of one method in one experiment; the
pool answers with every run of that config, whatever its seed and whichever
target ordered it. Under a constant schedule a run of fewer steps is a prefix of
a longer one, so runs of all lengths answer; otherwise the length has to match.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paddle_adagc.clips.registry import CLIPS
from paddle_adagc.lab.extensions.robust import argument_default
from paddle_adagc.lab.reproduce.results import (
    RECORDED_BEFORE,
    CellResult,
    TargetResult,
)

_PER_RUN = ("train.seed", "data.seed", "train.max_steps", "train.output_dir")

Pair = tuple[CellResult, CellResult]


@dataclasses.dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but the seed."""

    signature: str
    """Config without seed and length, as text."""

    num_steps: int
    is_constant: bool
    """Whether the schedule is constant, so that shorter runs are prefixes."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Arm:
        """Return the arm of a run's config with dotted keys.

        Arguments of the clip that equal its defaults do not count, so
        ``{"clip.name": "adagc"}`` and the same with ``clip.beta`` 0.99 are one
        arm.
        """
        kept = {
            key: value
            for key, value in config.items()
            if key not in _PER_RUN and not _is_default(key, value, config)
        }
        return cls(
            signature=json.dumps(kept, sort_keys=True),
            num_steps=int(config["train.max_steps"]),
            is_constant=config.get("schedule.kind") == "constant",
        )

    def takes(self, other: Arm) -> bool:
        """Whether a run of ``other`` counts as one of this arm."""
        return self.signature == other.signature and (
            self.is_constant or self.num_steps == other.num_steps
        )


class Pool:
    """Every run once, whichever results hold it.

    Args:
        results: Of any targets.
    """

    def __init__(self, results: Iterable[TargetResult]) -> None:
        self._runs: dict[str, list[tuple[Arm, CellResult]]] = {}
        known: set[str] = set()
        for result in results:
            for experiment in result.experiments:
                for cell in experiment.cells:
                    if not cell.num_steps or cell.run_id in known:
                        continue
                    known.add(cell.run_id)
                    arm = Arm.of({**experiment.config, **cell.config})
                    runs = self._runs.setdefault(arm.signature, [])
                    runs.append((arm, cell))

    def runs(self, arm: Arm) -> list[CellResult]:
        """Return runs of an arm, of all seeds, lengths and processors."""
        runs = self._runs.get(arm.signature, [])
        return [cell for run, cell in runs if arm.takes(run)]


def longest(runs: Iterable[CellResult]) -> list[CellResult]:
    """One run of every seed, in the order of the seeds.

    It is the longest; of several the one whose processor was recorded.
    """
    found: dict[int, CellResult] = {}
    for run in runs:
        known = found.get(run.seed)
        if known is None or _rank(run) > _rank(known):
            found[run.seed] = run
    return [found[seed] for seed in sorted(found)]


def paired(
    runs: Sequence[CellResult],
    others: Sequence[CellResult],
    measure: str | None = None,
) -> list[Pair]:
    """One pair of every seed that both have, in the order of the seeds.

    The two of a pair have the same length and come from the same model of
    processor; of several such pairs the one is taken whose runs
    :func:`longest` prefers.

    Args:
        runs: Of a method.
        others: Of the other method.
        measure: Only runs that have it.
    """
    found: dict[int, Pair] = {}
    for run in runs:
        for other in others:
            if (
                (run.seed, run.num_steps, run.cpu_model)
                != (other.seed, other.num_steps, other.cpu_model)
                or (measure is not None and measure not in run.measures)
                or (measure is not None and measure not in other.measures)
            ):
                continue
            known = found.get(run.seed)
            if known is None or _rank(run) > _rank(known[0]):
                found[run.seed] = (run, other)
    return [found[seed] for seed in sorted(found)]


def _rank(run: CellResult) -> tuple[int, bool, str]:
    cpu = run.cpu_model
    return run.num_steps, cpu != RECORDED_BEFORE, cpu


def _is_default(key: str, value: Any, config: Mapping[str, Any]) -> bool:
    section, _, argument = key.partition(".")
    if section != "clip" or argument == "name":
        return False
    clip = {k[5:]: v for k, v in config.items() if k.startswith("clip.")}
    if clip.get("name") not in CLIPS:
        return False
    try:
        return bool(value == argument_default(clip, argument))
    except KeyError:  # an argument of an earlier version
        return False
