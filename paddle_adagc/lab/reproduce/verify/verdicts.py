# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the claims, their p-values and their evidence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from paddle_adagc.lab.reproduce.verify.numbers import (
    EVENTS,
    Pair,
    change_text,
    counts,
    differences,
    limits,
    mean_limits,
    sign_flip,
)
from paddle_adagc.lab.reproduce.verify.runs import Check, Runs, StoredRun

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


class Comparison:
    """One of a verdict's comparisons, tested again."""

    def __init__(self, fields: dict[str, Any], runs: Runs) -> None:
        self.fields = fields
        self.method: str = fields["method"]
        self.expect: str = fields["expect"]
        self.measure: str = fields["measure"]
        self.margin: float | None = fields.get("margin")
        self.values: list[float] = fields.get("values", [])
        self.is_enough = fields.get("num_seeds", SEEDS) >= SEEDS
        self.first, self.second, self.beside = (
            runs.of(fields.get(name, ()))
            for name in ("keys", "other_keys", "beside_keys")
        )
        self.pairs: list[Pair] = []
        if self.first and self.second:
            self.pairs = [*zip(self.first, self.second, strict=True)]
        self.p = self._test() if fields.get("num_seeds", 1) else {}
        """``p_for``, ``p_against``, ``p_equal``, ``p_fewer``, as tested."""

    @property
    def d(self) -> np.ndarray:
        """Paired differences."""
        times = self.fields.get("times", 1)
        return differences(self.pairs, self.measure, times)

    def _test(self) -> dict[str, float]:
        if self.expect == "at most":
            return self._test_bound()
        if self.measure == EVENTS:
            return self._test_events()
        if self.margin is None:
            return self._sides(*sign_flip(self.d))
        low, high = (sign_flip(self.d + m) for m in (-self.margin, self.margin))
        within = max(low[0], high[1])
        if self.expect == "equal":
            return self._sides(within, min(1.0, 2 * min(low[1], high[0])))
        if self.expect == "no worse":
            return self._sides(*low)
        return self._sides(*sign_flip(self.d), within)

    def _sides(
        self, less: float, greater: float, equal: float | None = None
    ) -> dict[str, float]:
        """What is expected, its opposite, and no difference."""
        p = {"p_for": less, "p_against": greater}
        if self.expect == "higher":
            p = {"p_for": greater, "p_against": less}
        return p if equal is None else p | {"p_equal": equal}

    def _test_bound(self) -> dict[str, float]:
        """Of runs, which all have to keep it; of one number; of several."""
        bound = self.fields["bound"]
        if self.first:
            worst = max(run.measures[self.measure] for run in self.first)
            return self._sides(float(worst > bound), float(worst <= bound))
        d = np.array(self.values) - bound
        if len(d) > 1:
            t = d.mean() / (d.std(ddof=1) / math.sqrt(len(d)))
            below = float(stats.t.cdf(t, len(d) - 1))
            return self._sides(below, 1 - below)
        close = self.margin is not None and abs(d[0]) <= self.margin
        above, below = float(d[0] > 0 or close), float(d[0] <= 0 or close)
        return self._sides(above, below, float(not close))

    def _test_events(self) -> dict[str, float]:
        """The larger of the pooled and the clustered p."""
        k1, t1 = counts(self.first)
        margin = self.margin
        if not self.second:
            rare = margin is not None and not k1.sum()
            against = rarer(self.first, margin or 0.0) if rare else 1.0
            return self._sides(float(not k1.sum()), against)
        k2, t2 = counts(self.second)
        share = t1.sum() / (t1.sum() + t2.sum())
        total = int(k1.sum() + k2.sum())
        clustered = sign_flip(k1 / t1 - k2 / t2)
        less = max(float(stats.binom.cdf(k1.sum(), total, share)), clustered[0])
        pooled = float(stats.binom.sf(k1.sum() - 1, total, share))
        equal = None
        if margin is not None:
            equal = max(rarer(self.first, margin), rarer(self.second, margin))
        p = self._sides(less, max(pooled, clustered[1]), equal)
        if self.expect == "zero" and self.num_events(self.beside):
            p |= {"p_for": 1.0, "p_fewer": less}
        return p

    def num_events(self, others: Sequence[StoredRun]) -> int:
        """Events of its first side and of other runs."""
        return int(counts([*self.first, *others])[0].sum())

    def check(self, place: str, runs: Runs) -> Iterator[Check]:
        """Compare p-values, pairs and the number of seeds."""
        fields = self.fields
        for key in ("p_for", "p_against", "p_equal", "p_fewer"):
            yield f"{place}, {key}", fields.get(key), self.p.get(key)
        if self.pairs:
            pairs = runs.pairs(self.first, self.second, self.measure)
            yield f"{place}: pairs", fields["keys"], [a.id for a, _ in pairs]
            others = [b.id for _, b in pairs]
            yield f"{place}: other pairs", fields["other_keys"], others
        if self.expect != "at most" or "keys" in fields:
            is_tested = self.p and "values" not in fields
            num = len({run.seed for run in self.first}) if is_tested else 0
            yield f"{place}: seeds", fields.get("num_seeds"), num

    def outcome(self, verdict: Verdict, count: int) -> str:
        """What it says for itself, as one of ``count`` comparisons."""
        p = self.p
        if not p:
            return "missing"
        if "p_fewer" in p:
            (k1, t1), (k2, t2) = counts(self.first), counts(self.second)
            if k1.sum() * t2.sum() >= k2.sum() * t1.sum():
                return "no fewer"
            return (
                "part" if self.is_enough and p["p_fewer"] <= ALPHA else "open"
            )
        if not self.is_enough:
            return "against" if p.get("p_against") == 0 else "open"
        is_event = self.measure == EVENTS and bool(self.second)
        is_fewer = is_event and self.expect in ("lower", "zero")
        if is_fewer and not self.num_events(self.second):
            return "small" if verdict["control_is_calm"] else "calm"
        if p.get("p_equal", 1.0) <= ALPHA:
            return "small"
        if p["p_for"] <= ALPHA / 2:
            return "holds"
        return "against" if count * p["p_against"] <= ALPHA / 2 else "open"

    def number(self) -> str:
        """Return it in one number; "" if it was not tested."""
        if self.expect == "occurs":
            k, t = (side.sum() for side in counts(self.first))
            return f"{self.method}: {k:.0f} events in {t:,.0f} steps"
        if self.expect == "at most" and self.p:
            bound = f" (bound {self.fields['bound']:g})"
            if self.first:
                worst = max(run.measures[self.measure] for run in self.first)
                return f"largest {worst:.3g}{bound}"
            spec = ".4g" if len(self.values) > 1 else ".3g"
            return f"{np.mean(self.values):{spec}}{bound}"
        if not self.pairs:
            return ""
        p_for = self.p.get("p_fewer", self.p["p_for"])
        p = f", p {min(p_for, self.p['p_against']):.2g}"
        if self.measure != EVENTS:
            mean, low, high = mean_limits(self.d)
            unit = UNITS.get(self.measure, "")
            return f"{mean:+.3g}{unit} ({low:+.3g} to {high:+.3g}){p}"
        text = f"{change_text(EVENTS, self.pairs)} events"
        if not self.num_events(self.second):
            return f"{text} in {counts(self.first)[1].sum():,.0f} steps each"
        value, low, high = limits(EVENTS, self.pairs)
        ratio = f"{value:.2g} ({low:.2f}-{high:.2g})".replace("inf", "∞")
        return f"{text}, ratio {ratio}{p}"

    def texts(self) -> set[str]:
        """Return what its numbers are printed as."""
        number = self.number()
        named = f"{self.method} against {self.fields.get('other')}: {number}"
        found = {number, named, *(f"{p:.3g}" for p in self.p.values())}
        if self.measure == EVENTS:
            sides = (self.first, self.second, self.beside)
            found |= {count_text(runs) for runs in sides if runs}
        elif self.pairs:
            deviation = float(f"{np.std(self.d, ddof=1):.2g}")
            found.add(f"{np.mean(self.d):+.4g} ± {deviation:g}")
        return found


def rarer(runs: list[StoredRun], margin: float) -> float:
    """Test a rate below ``margin`` events per 1,000 judged steps."""
    events, judged = counts(runs)
    return float(stats.poisson.cdf(events.sum(), margin * judged.sum() / 1000))


def check_verdicts(
    verdicts: list[Verdict], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare every claim's tests, p-values, verdict and evidence."""
    tested = {
        (verdict["id"], rules): [Comparison(c, runs) for c in verdict[rules]]
        for verdict in verdicts
        for rules in ("comparisons", "premises")
    }
    p_values = {
        v["id"]: claim_p(tested[v["id"], "comparisons"]) for v in verdicts
    }
    primary = [v["id"] for v in verdicts if v["primary"]]
    p_for, p_against = (
        holm([p_values[name][side] for name in primary]) for side in (0, 1)
    )
    p_values |= dict(
        zip(primary, zip(p_for, p_against, strict=True), strict=True)
    )
    for verdict in verdicts:
        name = verdict["id"]
        own, premises = tested[name, "comparisons"], tested[name, "premises"]
        for comparison in [*own, *premises]:
            place = f"{name}, {comparison.method}"
            yield from comparison.check(place, runs)
        stored = [verdict["p_for"], verdict["p_against"]]
        yield f"{name}: p", stored, [*p_values[name]]
        expected = label_of(verdict, own, premises, p_values[name])
        yield f"{name}: verdict", verdict["verdict"], expected
        yield from check_evidence(verdict, own, premises, runs, pages)


def claim_p(comparisons: list[Comparison]) -> tuple[float, float]:
    """Return the claim's p for and against, before Holm."""
    if not comparisons:
        return 1.0, 1.0
    against = [
        c.p["p_against"]
        for c in comparisons
        if c.p and (c.is_enough or c.p["p_against"] == 0)
    ]
    p_for = max(c.p.get("p_for", 1.0) for c in comparisons)
    return p_for, min(1.0, len(comparisons) * min(against, default=1.0))


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


def label_of(
    verdict: Verdict,
    comparisons: list[Comparison],
    premises: list[Comparison],
    p_values: tuple[float, float],
) -> str:
    """Return the verdict by the rules of the page."""
    own, premise = (
        {c.outcome(verdict, len(comparisons)) for c in rules}
        for rules in (comparisons, premises)
    )
    p_for, p_against = p_values
    if not own:
        return "not testable here"
    if premise - {"holds"}:
        return "not exercised"
    if own == {"holds"}:
        if all(len(c.values) == 1 for c in comparisons):
            return "computed"
        return "reproduced" if p_for <= ALPHA / 2 else "undecided"
    if own & {"holds", "part"}:
        if "missing" in own:
            return "not run"
        back = max(c.p["p_for"] for c in comparisons) > 0.5
        return "partly" if own - {"holds", "open"} or back else "undecided"
    if "no fewer" in own:
        return "contradicted"
    if "against" in own:
        is_sure = not verdict["primary"] or p_against <= ALPHA / 2
        return "contradicted" if is_sure else "undecided"
    for found, label in (
        ("missing", "not run"),
        ("open", "undecided"),
        ("small", "no difference"),
    ):
        if found in own:
            return label
    return "not exercised"


def check_evidence(
    verdict: Verdict,
    own: list[Comparison],
    premises: list[Comparison],
    runs: Runs,
    pages: dict[str, str],
) -> Iterator[Check]:
    """Compare the label and the numbers in the claim's line on its pages."""
    words = {"reproduced": "holds", "contradicted": "does not hold"}
    label, name = verdict["verdict"], verdict["id"]
    right = words.get(label, label) if verdict["extension"] else label
    known = {"–", ""}.union(*(c.texts() for c in [*own, *premises]))
    known |= {f"{p:.3g}" for p in (verdict["p_for"], verdict["p_against"])}
    known |= {count_text(runs.of(k)) for k in verdict["controls"].values()}
    section = re.search(
        rf"(?ms)^### {re.escape(name)}\n(.*?)(?=^##|\Z)",
        pages.get("results/claims.md", ""),
    )
    evidence = section[1] if section else ""
    found = re.search(r"(?m)^\*\*(.+)\*\*$", evidence)
    yield f"results/claims.md, {name}", found and found[1], right
    for pattern in (
        r"[\d,]+ in [\d,]+ judged steps \([^)]*\)",
        r"[+-][\d.e+-]+ ± [\d.e+-]+(?=,)",
        r"\bp (\d+(?:\.\d+)?(?:e-\d+)?)",
    ):
        for number in re.findall(pattern, evidence):
            shown = number if number in known else "?"
            yield f"results/claims.md, {name}: {number}", number, shown
    for page in ("results.md", "results/claims.md"):
        for line in pages.get(page, "").splitlines():
            if line.startswith("| [") and f"#{name})" in line:
                *_, number, label = (c.strip("* |") for c in line.split(" | "))
                yield f"{page}, {name}: label", label, right
                shown = number if number in known else "?"
                yield f"{page}, {name}: number", number, shown


def count_text(runs: list[StoredRun]) -> str:
    """``"1 in 14,000 judged steps (0 / 1)"``."""
    events, judged = counts(runs)
    shown = " / ".join(f"{n:,.0f}" for n in events)
    return f"{events.sum():,.0f} in {judged.sum():,.0f} judged steps ({shown})"
