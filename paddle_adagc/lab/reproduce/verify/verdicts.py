# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the claims, their p-values and their evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paddle_adagc.lab.reproduce.verify.p_values import (
    Tests,
    counts,
    differences,
    tests_of,
)
from paddle_adagc.lab.reproduce.verify.runs import (
    Cell,
    Check,
    Runs,
    run_id,
)

SEEDS = 8
ALPHA = 0.05

Verdict = dict[str, Any]


def check_verdicts(
    verdicts: list[Verdict], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare every claim's tests, p-values, verdict and evidence."""
    tests = {
        v["id"]: [tests_of(c, *sides(c, runs)) for c in v["comparisons"]]
        for v in verdicts
    }
    p_values = {v["id"]: claim_p(v, tests[v["id"]]) for v in verdicts}
    primary = [v["id"] for v in verdicts if v["primary"]]
    columns = zip(*(p_values[name] for name in primary), strict=True)
    adjusted = zip(*map(holm, columns), strict=True)
    p_values.update(zip(primary, adjusted, strict=True))
    for verdict in verdicts:
        name, own = verdict["id"], tests[verdict["id"]]
        for comparison, test in zip(verdict["comparisons"], own, strict=True):
            place = f"{name}, {comparison['method']}"
            yield from check_comparison(place, comparison, test, runs)
        p_for, p_against = p_values[name]
        stored = [verdict["p_for"], verdict["p_against"]]
        yield f"{name}: p", stored, [p_for, p_against]
        expected = label_of(verdict, own, p_for, p_against)
        yield f"{name}: verdict", verdict["verdict"], expected
        yield from check_evidence(verdict, own, runs, pages)


def sides(comparison: dict[str, Any], runs: Runs) -> list[list[Cell]]:
    """Return the runs of both sides; an absent side has none."""
    names = ("keys", "other_keys")
    return [runs.of(comparison.get(name, ())) for name in names]


def check_comparison(
    place: str, comparison: dict[str, Any], test: Tests, runs: Runs
) -> Iterator[Check]:
    """Compare p-values, pairs and the number of seeds."""
    for key in ("p_for", "p_against", "p_equal"):
        yield f"{place}, {key}", comparison.get(key), test.get(key)
    first, second = sides(comparison, runs)
    if first and second:
        measure = comparison["measure"].replace("spike_events", "events_1000")
        pairs = runs.pairs(first, second, measure)
        if measure == "events_1000":
            pairs = [
                pair
                for pair in pairs
                if all(c["measures"]["judged_1000"] for c in pair)
            ]
        ones = [run_id(a) for a, _ in pairs]
        others = [run_id(b) for _, b in pairs]
        yield f"{place}: pairs", comparison["keys"], ones
        yield f"{place}: other pairs", comparison["other_keys"], others
    if comparison["expect"] != "at most" or "keys" in comparison:
        is_tested = test and "values" not in comparison
        num = len({c["seed"] for c in first}) if is_tested else 0
        yield f"{place}: seeds", comparison.get("num_seeds"), num


def check_evidence(
    verdict: Verdict, tests: list[Tests], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare the label and the numbers in the claim's line on its pages."""
    p_values = [verdict["p_for"], verdict["p_against"]]
    p_values += [p for test in tests for p in test.values()]
    known = {f"{p:.3g}" for p in p_values} | facts(verdict, runs)
    words = {"reproduced": "holds", "contradicted": "does not hold"}
    label = verdict["verdict"]
    for page, text in pages.items():
        for shown, evidence in claim_lines(verdict, text):
            name = f"{page}, {verdict['id']}"
            is_right = shown in (label, words.get(label))
            yield name, shown, shown if is_right else label
            for number in numbers_of(evidence):
                found = number if number in known else "?"
                yield f"{name}: {number}", number, found


def claim_lines(verdict: Verdict, page: str) -> Iterator[tuple[str, str]]:
    """Label and evidence of each line of a page about the claim."""
    claim = verdict["claim"].replace("|", "\\|")
    for line in page.splitlines():
        cells = [c.strip() for c in line.strip("|").split(" | ")]
        is_about_it = len(cells) == 4 and cells[0] == verdict["where"]
        if is_about_it and cells[1].startswith(claim):
            yield cells[2].strip("*"), cells[3]


def facts(verdict: Verdict, runs: Runs) -> set[str]:
    """Return counts and mean differences of all runs that a claim names."""
    found = set()
    for c in verdict["comparisons"]:
        first, second = sides(c, runs)
        if c["measure"] == "spike_events":
            beside = runs.of(c.get("beside_keys", ()))
            found |= {count_text(s) for s in (first, second, beside) if s}
        elif second:
            pairs = [*zip(first, second, strict=True)]
            d = differences(pairs, c["measure"], c.get("times", 1))
            found.add(mean_text(d))
    for keys in verdict["controls"].values():
        found.add(count_text(runs.of(keys)))
    return found


def claim_p(verdict: Verdict, tests: list[Tests]) -> tuple[float, float]:
    """Return the claim's p for and against, before Holm."""
    if not tests:
        return 1.0, 1.0
    against = [
        t["p_against"]
        for c, t in zip(verdict["comparisons"], tests, strict=True)
        if "p_against" in t
        and (c.get("num_seeds", SEEDS) >= SEEDS or t["p_against"] == 0)
    ]
    p_for = max(t.get("p_for", 1.0) for t in tests)
    return p_for, min(1.0, len(tests) * min(against, default=1.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's p of several claims, in their order."""
    p = np.array(p_values)
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * p[order]))
    return [float(value) for value in adjusted]


def label_of(
    verdict: Verdict,
    tests: list[Tests],
    p_for: float,
    p_against: float,
) -> str:
    """Return the verdict by the rules of the page."""
    if not tests:
        return "not testable here"
    if p_against <= ALPHA:
        return "contradicted"
    if any(c.get("num_seeds", SEEDS) < SEEDS for c in verdict["comparisons"]):
        return "undecided"
    if p_for <= ALPHA:
        return "reproduced"
    rest = [t for t in tests if t.get("p_for", 0.0) > ALPHA]
    if rest and all(t.get("p_equal", 1.0) <= ALPHA for t in rest):
        return "no difference"
    return "undecided"


def numbers_of(evidence: str) -> list[str]:
    """Return counts, mean differences and p-values in a claim's evidence."""
    return [
        *re.findall(r"[\d,]+ in [\d,]+ judged steps \([^)]*\)", evidence),
        *re.findall(r"[+-][\d.e+-]+ ± [\d.e+-]+(?=,)", evidence),
        *re.findall(r"\bp (\d+(?:\.\d+)?(?:e-\d+)?)", evidence),
    ]


def count_text(runs: list[Cell]) -> str:
    """``"1 in 14,000 judged steps (0 / 1)"``."""
    events, judged = counts(runs)
    shown = " / ".join(f"{n:,.0f}" for n in events)
    return f"{events.sum():,.0f} in {judged.sum():,.0f} judged steps ({shown})"


def mean_text(d: np.ndarray) -> str:
    """``"-0.0073 ± 0.0039"``."""
    deviation = float(f"{np.std(d, ddof=1):.2g}")
    return f"{np.mean(d):+.4g} ± {deviation:g}"
