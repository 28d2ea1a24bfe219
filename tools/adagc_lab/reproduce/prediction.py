# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who is helped by AdaGC: a rule on the first steps, and its test.

AdaGC replayed over the norms of a run under GlobalGC clips a share of the
tensors. Where it is :data:`THRESHOLD` or more, AdaGC would cut usual steps, and
a price is expected; below, a gain.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from adagc_lab.report.measures import REPLAYED_STEPS
from adagc_lab.reproduce.pairs import paired
from adagc_lab.reproduce.results import RunResult

WRONG = "wrong_percent"
REPLAYED = "replayed_percent"
THRESHOLD = 90.0
"""Percent; chosen on other runs before those that test it."""


class Prediction(NamedTuple):
    """What the rule said of a pair, and what came."""

    seed: int
    replayed: float
    """Percent of the tensors that AdaGC would have clipped."""

    gain: float
    """GlobalGC's mean loss after the first steps minus AdaGC's, in nat."""

    @property
    def is_wrong(self) -> bool:
        """Whether the rule named the clip with the higher loss."""
        return (self.gain > 0) != (self.replayed < THRESHOLD)


def predictions(
    runs: Iterable[tuple[str, RunResult]], start: str = ""
) -> list[Prediction]:
    """Return the rule on every pair whose norms were recorded.

    A pair is a run under AdaGC with the paper's values, but for the start of
    gamma if one is given, and one under GlobalGC
    with the same ``lambda_abs``, seed, processor and all else, without faults.
    It is helped if AdaGC's mean loss after the first steps is the lower one.

    Args:
        runs: Config without seed and length, as JSON, and the run.
        start: How gamma starts in the judged runs; the rule replays the
            paper's start in any case. "": the paper's.
    """
    sides: dict[tuple[str, str], list[RunResult]] = {}
    for text, run in runs:
        config = json.loads(text)
        name = str(config.pop("clip.name", ""))
        its_start = config.pop("clip.init", "")
        extra = any(k[:5] == "clip." for k in {*config} - {"clip.lambda_abs"})
        is_asked = name != "adagc" or its_start == start
        if is_asked and not (extra or config.get("faults")) and run.series:
            key = json.dumps(config, sort_keys=True), name
            sides.setdefault(key, []).append(run)
    found = []
    for (setting, name), own in sides.items():
        if name != "adagc":
            continue
        others = sides.get((setting, "global_norm"), [])
        for run, other in paired(own, others, "final_loss"):
            if REPLAYED not in other.measures:
                continue
            first, second = (
                float(np.mean(r.losses[REPLAYED_STEPS:])) for r in (run, other)
            )
            replayed = other.measures[REPLAYED]
            found.append(Prediction(run.seed, replayed, second - first))
    return found


def wrong_percent(runs: Iterable[tuple[str, RunResult]]) -> list[float]:
    """Share of each seed's pairs for which the rule is wrong, in percent."""
    by_seed: dict[int, list[float]] = {}
    for one in predictions(runs):
        by_seed.setdefault(one.seed, []).append(100.0 * one.is_wrong)
    return [statistics.fmean(by_seed[seed]) for seed in sorted(by_seed)]
