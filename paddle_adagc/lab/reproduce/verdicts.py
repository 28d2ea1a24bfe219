# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Verdicts on claims: what their rules say about the results."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from paddle_adagc.lab.report.formatting import format_list
from paddle_adagc.lab.reproduce.claims import Claim, Condition
from paddle_adagc.lab.reproduce.results import ExperimentResult, TargetResult
from paddle_adagc.lab.reproduce.statistics import (
    Alternative,
    paired_differences,
    sign_flip_test,
)

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_TESTABLE = "not testable here"

MIN_SEEDS = 3
"""With fewer a bound that no seed breaks says nothing."""

_OF_EXTENSIONS = {REPRODUCED: "holds", NOT_REPRODUCED: "does not hold"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a claim."""

    claim: Claim
    verdict: str
    """:data:`REPRODUCED`, :data:`NOT_REPRODUCED` or :data:`NOT_TESTABLE`."""

    evidence: str
    """The numbers that decided it, or why nothing could."""

    @property
    def label(self) -> str:
        """The verdict in words; what is not the paper's is not reproduced."""
        if self.claim.extension:
            return _OF_EXTENSIONS.get(self.verdict, self.verdict)
        return self.verdict


@dataclasses.dataclass(frozen=True)
class Finding:
    """A condition, looked up in the results."""

    holds: bool | None
    """None: the results cannot tell."""

    text: str


def judge(claim: Claim, results: Mapping[str, TargetResult]) -> Verdict:
    """Apply a claim's rule.

    Not testable here: the claim says so, there are no results, a condition of
    ``testable_if`` does not hold, or the results cannot tell. Else reproduced
    if all of ``reproduced_if`` hold.

    Args:
        claim: The claim.
        results: By target.
    """
    if claim.target is None:
        return Verdict(claim, NOT_TESTABLE, claim.not_testable or "")
    result = results.get(claim.target)
    if result is None:
        return Verdict(claim, NOT_TESTABLE, f"{claim.target} was not run")
    needed = [_look_up(c, claim, result) for c in claim.testable_if]
    for finding in needed:
        if finding.holds is None:
            return Verdict(claim, NOT_TESTABLE, finding.text)
    findings = [_look_up(c, claim, result) for c in claim.reproduced_if]
    texts = dict.fromkeys(finding.text for finding in (*needed, *findings))
    evidence = "; ".join(texts)
    if not all(finding.holds for finding in needed):
        return Verdict(claim, NOT_TESTABLE, evidence)
    if any(finding.holds is False for finding in findings):
        return Verdict(claim, NOT_REPRODUCED, evidence)
    if any(finding.holds is None for finding in findings):
        return Verdict(claim, NOT_TESTABLE, evidence)
    return Verdict(claim, REPRODUCED, evidence)


def _look_up(
    condition: Condition, claim: Claim, result: TargetResult
) -> Finding:
    name = condition.experiment or claim.experiment
    experiment = result.experiment(name or "")
    if experiment is None or not experiment.cells:
        return Finding(None, f"{name} was not run")
    others = [condition.below, condition.above, *(condition.lowest_of or [])]
    for method in (*condition.methods, *filter(None, others)):
        values = experiment.values(method, condition.measure)
        if not values or None in values:
            return Finding(
                None, f"{name}: no {condition.measure} of {method} was measured"
            )
    finding = _evaluate(condition, experiment)
    return Finding(finding.holds, f"{name}: {finding.text}")


def _evaluate(condition: Condition, experiment: ExperimentResult) -> Finding:
    if condition.range is not None:
        return _range(condition, experiment)
    if condition.min is not None or condition.max is not None:
        return _all(
            [_bound(condition, experiment, m) for m in condition.methods]
        )
    alternative: Alternative = "greater" if condition.above else "less"
    others = condition.lowest_of or [condition.below or condition.above or ""]
    return _all(
        [
            _difference(condition, experiment, method, other, alternative)
            for method in condition.methods
            for other in others
        ]
    )


def _bound(
    condition: Condition, experiment: ExperimentResult, method: str
) -> Finding:
    values = _known(experiment, method, condition.measure)
    low = -math.inf if condition.min is None else condition.min
    high = math.inf if condition.max is None else condition.max
    if condition.seeds == "mean":
        mean = statistics.fmean(values)
        text = f"{condition.measure} of {method} {mean:.4g} on average"
        if _has_few_seeds(experiment, values):
            return _too_few(text, values)
        return Finding(low <= mean <= high, text)
    inside = [low <= value <= high for value in values]
    enough = {
        "every": all(inside),
        "most": 2 * sum(inside) > len(inside),
        "any": any(inside),
    }
    text = (
        f"{condition.measure} of {method} {format_list(values, '.4g')}"
        f"{_judged_text(condition, experiment, method)}"
    )
    holds = enough[condition.seeds]
    more_could_change_it = condition.seeds == "most" or holds == (
        condition.seeds == "every"
    )
    if more_could_change_it and _has_few_seeds(experiment, values):
        return _too_few(text, values)
    return Finding(holds, text)


def _difference(
    condition: Condition,
    experiment: ExperimentResult,
    method: str,
    other: str,
    alternative: Alternative,
) -> Finding:
    differences = paired_differences(
        _known(experiment, method, condition.measure),
        _known(experiment, other, condition.measure),
    )
    side = -1 if alternative == "less" else 1
    test = sign_flip_test(differences + side * condition.margin, alternative)
    margin = f" (margin {condition.margin:g})" if condition.margin else ""
    text = (
        f"{condition.measure} of {method} minus {other} "
        f"{_mean_text(differences)}{margin}, p {test.p:.3g}"
    )
    if test.p <= condition.p:
        return Finding(True, text)
    if test.smallest_p > condition.p:
        return Finding(
            None,
            f"{text}; {test.num_pairs} seeds like these cannot give less than "
            f"{test.smallest_p:.3g}",
        )
    return Finding(False, text)


def _range(condition: Condition, experiment: ExperimentResult) -> Finding:
    means = {
        method: statistics.fmean(_known(experiment, method, condition.measure))
        for method in condition.methods
    }
    diverged = [m for m, mean in means.items() if not math.isfinite(mean)]
    if diverged:
        return Finding(False, f"{', '.join(diverged)} diverged")
    low, high = min(means.values()), max(means.values())
    share = (high - low) / abs(low) if low else math.inf
    lowest = min(means, key=lambda method: means[method])
    highest = max(means, key=lambda method: means[method])
    text = (
        f"{condition.measure} from {low:.4g} ({lowest}) to {high:.4g} "
        f"({highest}), {share:.2%}"
    )
    values = _known(experiment, lowest, condition.measure)
    if _has_few_seeds(experiment, values):
        return _too_few(text, values)
    return Finding(share <= (condition.range or 0.0), text)


def _has_few_seeds(
    experiment: ExperimentResult, values: Sequence[float]
) -> bool:
    """Whether these are runs, and too few; a timing may stand alone."""
    of_runs = any("steps" in cell.measures for cell in experiment.cells)
    return of_runs and len(values) < MIN_SEEDS


def _too_few(text: str, values: Sequence[float]) -> Finding:
    return Finding(None, f"{text}; {len(values)} of {MIN_SEEDS} seeds needed")


def _judged_text(
    condition: Condition, experiment: ExperimentResult, method: str
) -> str:
    """How many steps a count of spikes is about."""
    kind, _, window = condition.measure.rpartition("_")
    if kind != "spikes":
        return ""
    judged = experiment.values(method, f"judged_{window}")
    known = [value for value in judged if value is not None]
    return f" in {max(known):,.0f} judged steps" if known else ""


def _all(findings: Sequence[Finding]) -> Finding:
    """Findings that all have to hold, as one."""
    outcomes = [finding.holds for finding in findings]
    holds = False if False in outcomes else None if None in outcomes else True
    return Finding(holds, ", ".join(finding.text for finding in findings))


def _known(
    experiment: ExperimentResult, method: str, measure: str
) -> list[float]:
    return [v for v in experiment.values(method, measure) if v is not None]


def _mean_text(differences: Sequence[float] | np.ndarray) -> str:
    mean = statistics.fmean(differences)
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return f"{mean:+.4g}"
    return f"{mean:+.4g} ± {statistics.stdev(differences):.2g}"
