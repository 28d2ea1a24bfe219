# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verdicts of the claims, their p-values and their evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import stats

from adagc_lab.reproduce.verify.numbers import (
    change_text,
    counts,
    differences,
    limits,
    mean_limits,
    sign_flip,
)
from adagc_lab.reproduce.verify.runs import (
    EVENTS,
    Check,
    Pair,
    Runs,
    StoredRun,
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

RULES = ("comparisons", "premises")

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

    @property
    def worst(self) -> float:
        """Largest value of what has a bound."""
        runs = [run.measures[self.measure] for run in self.first]
        return max(self.values or runs)

    def _test(self) -> dict[str, float]:
        """Test what is expected, its opposite, no difference, fewer events."""
        if self.expect == "at most":
            less, greater, equal = self._test_bound()
        elif self.measure == EVENTS:
            less, greater, equal = self._test_events()
        else:
            less, greater, equal = self._test_values()
        sides = (greater, less) if self.expect == "higher" else (less, greater)
        p = dict(zip(("p_for", "p_against"), sides, strict=True))
        if equal is not None:
            p["p_equal"] = equal
        if self.expect == "zero" and self.num_events(self.beside):
            p |= {"p_for": 1.0, "p_fewer": less}
        return p

    def _test_bound(self) -> tuple[float, float, float | None]:
        """Of runs, which all have to keep it; of one number; of several."""
        bound, n = self.fields["bound"], len(self.values)
        if n > 1:
            error = np.std(self.values, ddof=1) / n**0.5
            t = (np.mean(self.values) - bound) / error
            return (
                float(stats.t.cdf(t, n - 1)),
                float(stats.t.sf(t, n - 1)),
                None,
            )
        excess = self.worst - bound
        if self.first:
            return float(excess > 0), float(excess <= 0), None
        close = self.margin is not None and abs(excess) <= self.margin
        above, below = float(excess > 0 or close), float(excess <= 0 or close)
        return above, below, float(not close)

    def _test_values(self) -> tuple[float, float, float | None]:
        """Flip the signs of the differences, beside the margin's ends."""
        if self.margin is None:
            return *sign_flip(self.d), None
        low, high = (sign_flip(self.d + m) for m in (-self.margin, self.margin))
        within = max(low[0], high[1])
        if self.expect == "equal":
            return within, min(1.0, 2 * min(low[1], high[0])), None
        if self.expect == "no worse":
            return *low, None
        return *sign_flip(self.d), within

    def _test_events(self) -> tuple[float, float, float | None]:
        """The larger of the pooled and the clustered p."""
        (k1, t1), rare = counts(self.first), self._rare()
        if not self.second:
            denied = 1.0 if rare is None or k1.sum() else rare
            return float(not k1.sum()), denied, None
        k2, t2 = counts(self.second)
        share = t1.sum() / (t1.sum() + t2.sum())
        total = int(k1.sum() + k2.sum())
        less, greater = sign_flip(k1 / t1 - k2 / t2)
        less = max(float(stats.binom.cdf(k1.sum(), total, share)), less)
        pooled = float(stats.binom.sf(k1.sum() - 1, total, share))
        return less, max(pooled, greater), rare

    def _rare(self) -> float | None:
        """Test rates of both sides below the margin."""
        if self.margin is None:
            return None
        sides = [counts(side) for side in (self.first, self.second) if side]
        return max(
            float(stats.poisson.cdf(k.sum(), self.margin * t.sum() / 1000))
            for k, t in sides
        )

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
        if not self.values:
            num = len({run.seed for run in self.first}) if self.p else 0
            yield f"{place}: seeds", fields["num_seeds"], num

    def outcome(self, verdict: Verdict) -> str:
        """What it says for itself."""
        p = self.p
        if not p:
            return "missing"
        if "p_fewer" in p:
            (k1, t1), (k2, t2) = counts(self.first), counts(self.second)
            if k1.sum() * t2.sum() >= k2.sum() * t1.sum():
                return "no fewer"
            is_part = self.is_enough and p["p_fewer"] <= ALPHA
            return "part" if is_part else "open"
        if not self.is_enough:
            return "against" if p["p_against"] == 0 else "open"
        if self.is_calm:
            return "small" if verdict["control_is_calm"] else "calm"
        if p.get("p_equal", 1.0) <= ALPHA:
            return "small"
        if p["p_for"] <= ALPHA / 2:
            return "holds"
        p_against = len(verdict["comparisons"]) * p["p_against"]
        return "against" if p_against <= ALPHA / 2 else "open"

    @property
    def is_calm(self) -> bool:
        """Whether neither side has an event, so that there are none fewer."""
        is_fewer = self.expect in ("lower", "zero") and self.measure == EVENTS
        return is_fewer and not self.num_events(self.second)

    def number(self) -> str:
        """Return it in one number; "" if it was not tested."""
        if self.expect == "occurs":
            k, t = (side.sum() for side in counts(self.first))
            return f"{self.method}: {k:.0f} events in {t:,.0f} steps"
        if self.expect == "at most" and self.p:
            bound = f" (bound {self.fields['bound']:g})"
            if self.first:
                return f"largest {self.worst:.3g}{bound}"
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
            mean = float(f"{np.mean(self.d):.9g}")  # a tie is one everywhere
            found.add(f"{mean:+.4g} ± {deviation:g}")
        return found


def check_verdicts(
    verdicts: list[Verdict], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare every claim's tests, p-values, verdict and evidence."""
    tested = [
        [[Comparison(c, runs) for c in v[rules]] for rules in RULES]
        for v in verdicts
    ]
    p_values = [claim_p(own) for own, _ in tested]
    primary = [i for i, verdict in enumerate(verdicts) if verdict["primary"]]
    adjusted = zip(
        *(holm([p_values[i][side] for i in primary]) for side in (0, 1)),
        strict=True,
    )
    for i, both in zip(primary, adjusted, strict=True):
        p_values[i] = both
    for verdict, (own, premises), p in zip(
        verdicts, tested, p_values, strict=True
    ):
        name = verdict["id"]
        for comparison in [*own, *premises]:
            place = f"{name}, {comparison.method}"
            yield from comparison.check(place, runs)
        stored = [verdict["p_for"], verdict["p_against"]]
        yield f"{name}: p", stored, [*p]
        expected = label_of(verdict, own, premises, *p)
        yield f"{name}: verdict", verdict["verdict"], expected
        numbers = {"–", ""}.union(*(c.texts() for c in [*own, *premises]))
        numbers |= {f"{value:.3g}" for value in p}
        numbers |= {
            count_text(runs.of(k)) for k in verdict["controls"].values()
        }
        yield from check_evidence(verdict, numbers, pages)


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
    p_for: float,
    p_against: float,
) -> str:
    """Return the verdict by the rules of the page: the first that applies."""
    own, premise = (
        {c.outcome(verdict) for c in rules} for rules in (comparisons, premises)
    )
    is_part = bool(own & {"holds", "part"})
    is_one = all(len(c.values) == 1 for c in comparisons)
    is_back = any(c.p.get("p_for", 1.0) > 0.5 for c in comparisons)
    is_sure = not verdict["primary"] or p_against <= ALPHA / 2
    rules = (
        ("not testable here", not own),
        ("not exercised", premise - {"holds"}),
        ("computed", own == {"holds"} and is_one),
        ("reproduced", own == {"holds"} and p_for <= ALPHA / 2),
        ("undecided", own == {"holds"}),
        ("not run", is_part and "missing" in own),
        ("undecided", own == {"holds", "open"} and not is_back),
        ("partly", is_part),
        ("contradicted", "no fewer" in own),
        ("contradicted", "against" in own and is_sure),
        ("undecided", "against" in own),
        ("not run", "missing" in own),
        ("undecided", "open" in own),
        ("no difference", "small" in own),
        ("not exercised", True),
    )
    return next(label for label, applies in rules if applies)


def check_evidence(
    verdict: Verdict, numbers: set[str], pages: dict[str, str]
) -> Iterator[Check]:
    """Compare the label and the numbers in the claim's lines on its pages."""
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
    for pattern in (
        r"[\d,]+ in [\d,]+ judged steps \([^)]*\)",
        r"[+-][\d.e+-]+ ± [\d.e+-]+(?=,)",
        r"\bp (\d+(?:\.\d+)?(?:e-\d+)?)",
    ):
        for number in re.findall(pattern, evidence):
            shown = number if number in numbers else "?"
            yield f"results/claims.md, {name}: {number}", number, shown
    for page in ("results.md", "results/claims.md"):
        for line in pages.get(page, "").splitlines():
            if line.startswith("| [") and f"#{name})" in line:
                _, label, number, *_ = (
                    cell.strip("* |") for cell in line.split(" | ")
                )
                yield f"{page}, {name}: label", label, right
                shown = number if number in numbers else "?"
                yield f"{page}, {name}: number", number, shown


def count_text(runs: list[StoredRun]) -> str:
    """``"1 in 14,000 judged steps (0 / 1)"``."""
    events, judged = counts(runs)
    shown = " / ".join(f"{n:,.0f}" for n in events)
    return f"{events.sum():,.0f} in {judged.sum():,.0f} judged steps ({shown})"
