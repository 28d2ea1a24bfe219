# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the claims, their p-values and their evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paddle_adagc.lab.reproduce.verify.numbers import (
    Tests,
    change_text,
    counts,
    differences,
    limits,
    mean_limits,
    tests_of,
)
from paddle_adagc.lab.reproduce.verify.runs import (
    Check,
    Runs,
    StoredRun,
    run_id,
)

UNITS = {
    "excess_area": " nat × steps",
    "spike_mass": " nat × steps",
    "final_loss": " nat",
    "validation_loss": " nat",
    "retrieval_accuracy": " %",
    "moment1_growth": " ×",
    "clipped_percent_end": " %",
}
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
    premises = {
        v["id"]: [tests_of(c, *sides(c, runs)) for c in v["premises"]]
        for v in verdicts
    }
    p_values = {v["id"]: claim_p(v, tests[v["id"]]) for v in verdicts}
    primary = [v["id"] for v in verdicts if v["primary"]]
    columns = zip(*(p_values[name] for name in primary), strict=True)
    adjusted = zip(*map(holm, columns), strict=True)
    p_values.update(zip(primary, adjusted, strict=True))
    for verdict in verdicts:
        name, own = verdict["id"], tests[verdict["id"]]
        rules = [*verdict["comparisons"], *verdict["premises"]]
        both = [*own, *premises[name]]
        for comparison, test in zip(rules, both, strict=True):
            place = f"{name}, {comparison['method']}"
            yield from check_comparison(place, comparison, test, runs)
        p_for, p_against = p_values[name]
        stored = [verdict["p_for"], verdict["p_against"]]
        yield f"{name}: p", stored, [p_for, p_against]
        said = [
            outcome(c, test, verdict, len(own), runs)
            for c, test in zip(rules, both, strict=True)
        ]
        expected = label_of(verdict, said, own, p_for, p_against)
        yield f"{name}: verdict", verdict["verdict"], expected
        yield from check_evidence(verdict, both, runs, pages)


def sides(comparison: dict[str, Any], runs: Runs) -> list[list[StoredRun]]:
    """Return the runs of both sides and the unpaired; absent: none."""
    names = ("keys", "other_keys", "beside_keys")
    return [runs.of(comparison.get(name, ())) for name in names]


def check_comparison(
    place: str, comparison: dict[str, Any], test: Tests, runs: Runs
) -> Iterator[Check]:
    """Compare p-values, pairs and the number of seeds."""
    for key in ("p_for", "p_against", "p_equal", "p_fewer"):
        yield f"{place}, {key}", comparison.get(key), test.get(key)
    first, second, _ = sides(comparison, runs)
    if first and second:
        pairs = runs.pairs(first, second, comparison["measure"])
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
    label, name = verdict["verdict"], verdict["id"]
    right = words.get(label, label) if verdict["extension"] else label
    section = re.search(
        rf"(?ms)^### {re.escape(name)}\n(.*?)(?=^##|\Z)",
        pages.get("results/claims.md", ""),
    )
    evidence = section[1] if section else ""
    found = re.search(r"(?m)^\*\*(.+)\*\*$", evidence)
    yield f"results/claims.md, {name}", found and found[1], right
    for number in numbers_of(evidence):
        shown = number if number in known else "?"
        yield f"results/claims.md, {name}: {number}", number, shown
    short = short_texts(verdict, tests, runs)
    for page in ("results.md", "results/claims.md"):
        for line in pages.get(page, "").splitlines():
            if line.startswith("| [") and f"#{name})" in line:
                *_, number, label = (c.strip("* |") for c in line.split(" | "))
                yield f"{page}, {name}: label", label, right
                shown = number if number in short else "?"
                yield f"{page}, {name}: number", number, shown


def short_texts(verdict: Verdict, tests: list[Tests], runs: Runs) -> set[str]:
    """Return what each comparison may be in one number; "–" without one."""
    found = {"–", ""}
    for c, test in zip(verdict["comparisons"], tests, strict=False):
        first, second, _ = sides(c, runs)
        measure = c["measure"]
        if c["expect"] in ("at most", "occurs"):
            found |= bound_texts(c, first)
            continue
        if not first or not second:
            continue
        pairs = [*zip(first, second, strict=True)]
        if measure == "spike_events":
            p = min(test.get("p_fewer", test["p_for"]), test["p_against"])
            change = change_text(measure, pairs) + " events"
            if counts([*first, *second])[0].sum():
                value, low, high = limits(measure, pairs)
                ratio = f"{value:.2g} ({low:.2f}-{high:.2g})"
                text = f"{change}, ratio {ratio}, p {p:.2g}"
            else:
                text = f"{change} in {counts(first)[1].sum():,.0f} steps each"
            text = text.replace("inf", "∞")
        else:
            mean, low, high = mean_limits(
                differences(pairs, measure, c.get("times", 1))
            )
            p = min(test["p_for"], test["p_against"])
            text = (
                f"{mean:+.3g}{UNITS.get(measure, '')} "
                f"({low:+.3g} to {high:+.3g}), p {p:.2g}"
            )
        found |= {text, f"{c['method']} against {c['other']}: {text}"}
    return found


def bound_texts(c: dict[str, Any], cells: list[StoredRun]) -> set[str]:
    """Of a bound, or of events that should occur."""
    if c["expect"] == "occurs":
        k, t = counts(cells)
        return {f"{c['method']}: {k.sum():.0f} events in {t.sum():,.0f} steps"}
    if "bound" not in c:  # no run yet
        return set()
    if cells:
        values = [cell["measures"][c["measure"]] for cell in cells]
        return {f"largest {max(values):.3g} (bound {c['bound']:g})"}
    spec = ".4g" if len(c.get("values", ())) > 1 else ".3g"
    mean = np.mean(c["values"]) if c.get("values") else math.nan
    return {f"{mean:{spec}} (bound {c['bound']:g})"}


def facts(verdict: Verdict, runs: Runs) -> set[str]:
    """Return counts and mean differences of all runs that a claim names."""
    found = set()
    for c in [*verdict["comparisons"], *verdict["premises"]]:
        first, second, beside = sides(c, runs)
        if c["measure"] == "spike_events":
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
    return [
        max(
            min(1.0, sum(q >= other for q in p_values) * other)
            for other in p_values
            if other <= p
        )
        for p in p_values
    ]


def outcome(
    comparison: dict[str, Any],
    test: Tests,
    verdict: Verdict,
    count: int,
    runs: Runs,
) -> str:
    """What one comparison says for itself."""
    if not test:
        return "missing"
    first, second, _ = sides(comparison, runs)
    is_enough = comparison.get("num_seeds", SEEDS) >= SEEDS
    if "p_fewer" in test:
        (k1, t1), (k2, t2) = counts(first), counts(second)
        if k1.sum() * t2.sum() >= k2.sum() * t1.sum():
            return "no fewer"
        return "part" if is_enough and test["p_fewer"] <= ALPHA else "open"
    if not is_enough:
        return "against" if test.get("p_against") == 0 else "open"
    is_event = comparison["measure"] == "spike_events" and bool(second)
    is_fewer = is_event and comparison["expect"] in ("lower", "zero")
    if is_fewer and not counts([*first, *second])[0].sum():
        return "small" if verdict["control_is_calm"] else "calm"
    if test.get("p_equal", 1.0) <= ALPHA:
        return "small"
    if test["p_for"] <= ALPHA / 2:
        return "holds"
    return "against" if count * test["p_against"] <= ALPHA / 2 else "open"


def label_of(
    verdict: Verdict,
    said: list[str],
    tests: list[Tests],
    p_for: float,
    p_against: float,
) -> str:
    """Return the verdict by the rules of the page."""
    own, premises = {*said[: len(tests)]}, {*said[len(tests) :]}
    primary = verdict["primary"]
    if not own:
        return "not testable here"
    if premises - {"holds"}:
        return "not exercised"
    if own == {"holds"}:
        if all(len(c.get("values", ())) == 1 for c in verdict["comparisons"]):
            return "computed"
        return "reproduced" if p_for <= ALPHA / 2 else "undecided"
    if own & {"holds", "part"}:
        if "missing" in own:
            return "not run"
        back = max(test["p_for"] for test in tests) > 0.5
        return "partly" if own - {"holds", "open"} or back else "undecided"
    if "no fewer" in own:
        return "contradicted"
    if "against" in own:
        is_sure = not primary or p_against <= ALPHA / 2
        return "contradicted" if is_sure else "undecided"
    for found, label in (
        ("missing", "not run"),
        ("open", "undecided"),
        ("small", "no difference"),
    ):
        if found in own:
            return label
    return "not exercised"


def numbers_of(evidence: str) -> list[str]:
    """Return counts, mean differences and p-values in a claim's evidence."""
    return [
        *re.findall(r"[\d,]+ in [\d,]+ judged steps \([^)]*\)", evidence),
        *re.findall(r"[+-][\d.e+-]+ ± [\d.e+-]+(?=,)", evidence),
        *re.findall(r"\bp (\d+(?:\.\d+)?(?:e-\d+)?)", evidence),
    ]


def count_text(runs: list[StoredRun]) -> str:
    """``"1 in 14,000 judged steps (0 / 1)"``."""
    events, judged = counts(runs)
    shown = " / ".join(f"{n:,.0f}" for n in events)
    return f"{events.sum():,.0f} in {judged.sum():,.0f} judged steps ({shown})"


def mean_text(d: np.ndarray) -> str:
    """``"-0.0073 ± 0.0039"``."""
    deviation = float(f"{np.std(d, ddof=1):.2g}")
    return f"{np.mean(d):+.4g} ± {deviation:g}"
