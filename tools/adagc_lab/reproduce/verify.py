# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An independent check of the results' pages, with separate code.

``results/report.json`` says which runs stand in which row and behind which
test. What follows from the lines in ``results/`` is computed again, in the form
in which it stands there, and :func:`compare` puts each value beside its own:
measures, pairs, p, verdicts, also by a later rule. On the pages it looks for
the lines and numbers that follow, a gain without its price, zeros without
masses. It shares nothing with the code that wrote them: :mod:`.recount`, NumPy,
SciPy and the standard library alone.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import stats

from adagc_lab.reproduce.recount import (
    DERIVED,
    EVENTS,
    MASS,
    PRICE,
    SEEDS,
    WRONG,
    Pair,
    Runs,
    beside,
    by_length,
    cell_text,
    change,
    counts,
    differences,
    having,
    log_ratios,
    longest,
    mean_limits,
    num_seeds,
    once,
    possible_rows,
    ratio_limits,
    recounted,
    sign_flip,
    total,
    wrong_percent,
)

ALPHA = 0.05
GAINS = (
    *(MASS, "excess_area", "excess_area_global", "excess_worst"),
    "moment1_growth",
)
ROWS = {
    "spiking": (MASS, EVENTS, PRICE, "mean_loss"),
    "faults": ("excess_area", "excess_area_global", EVENTS, PRICE),
    "calm": ("validation_loss", MASS, PRICE),
}
UNITS = {
    " nat": ("final_loss", "validation_loss"),
    " nat × steps": ("excess_area", "excess_area_global", MASS),
    " %": ("retrieval_accuracy", "clipped_percent_end"),
    " ×": ("moment1_growth",),
}
PAGE, CLAIMS = "docs/results.md", "docs/results/claims.md"
ALL_ROWS = "docs/results/comparisons.md"
_BELOW = "lower", "less on", "falls on", "goes down on"
_ABOVE = "higher", "more on", "rises on"
DIRECTIONS: dict[str, Callable[[float, float], bool]] = {
    **dict.fromkeys(_BELOW, lambda low, high: high < 0),
    **dict.fromkeys(_ABOVE, lambda low, high: low > 0),
    "level": lambda low, high: -0.01 < low <= high < 0.01,
    "not shown on": lambda low, high: high >= 0,
}
"""What the answer says of the rows behind a word."""

LATER_RULE = "made after the runs, would say"
_ABSENT: dict[str, Any] = {"values": [], "times": 1, "margin": None}
_ABSENT |= {"num_seeds": None, "other": None, "seeds": ()}
Tests = tuple[float, float, float | None]  # less, greater, no difference
Pages = dict[str, str]
Check = tuple[str, Any, Any]
"""What is compared, the value that stands there, the recomputed one."""


def verify(results: Path, docs: Path) -> int:
    """Print every difference of the pages; 1 if anything differs, else 0."""
    runs = Runs(results)
    report = json.loads((results / "report.json").read_text("utf-8"))
    pages = defaultdict(str)
    for path in [*docs.rglob("*.md"), *docs.parent.glob("README*.md")]:
        name = path.relative_to(docs.parent).as_posix()
        pages[name] = path.read_text("utf-8")
    count = num_wrong = 0
    for place, seen, expected in itertools.chain(
        check_losses(runs),
        check_tables(report["tables"], runs, pages),
        check_rows(report["rows"], runs, pages),
        check_verdicts(report["verdicts"], runs, pages),
        check_sentences(pages),
    ):
        count += 1
        if not same(seen, expected):
            num_wrong += 1
            print(f"{place}: stands {seen!r}, recomputed {expected!r}")
    print(f"{count} values recomputed, {num_wrong} differ")
    return int(num_wrong > 0 or count == 0)


def compare(place: str, seen: Any, expected: Any) -> Iterator[Check]:
    """Yield each value of what is recomputed, beside what stands there."""
    parts: list[Check] = []
    if isinstance(expected, dict):
        parts = [(k, seen.get(k), value) for k, value in expected.items()]
    elif isinstance(expected, list):
        both = itertools.zip_longest(seen or [], expected)
        parts = [(str(i), *pair) for i, pair in enumerate(both)]
    else:
        yield place, seen, expected
    for name, own, value in parts:
        yield from compare(f"{place}, {name}", own, value)


def same(seen: Any, expected: Any) -> bool:
    """Equal; numbers up to what a line keeps of them, 7 digits."""
    if isinstance(seen, (int, float)) and isinstance(expected, (int, float)):
        return math.isclose(seen, expected, rel_tol=1e-6, abs_tol=1e-12) or (
            math.isnan(seen) and math.isnan(expected)
        )
    return bool(seen == expected)


def check_losses(runs: Runs) -> Iterator[Check]:
    """Compare what follows from a line's losses; add what lines lack."""
    for run, found in recounted(runs.lines):
        lacking = DERIVED - {*run.measures}
        held = {name: found[name] for name in found if name not in lacking}
        yield from compare(run.name, run.measures, held)
        run.measures = found | run.measures


def check_tables(
    listed: list[dict[str, Any]], runs: Runs, pages: Pages
) -> Iterator[Check]:
    """Compare the runs of each row; none may be left out of all tables."""
    shown = set()
    for table in listed:
        page, title = f"docs/{table['page']}", table["title"]
        text = pages[page].partition(f"### {title}\n")[2].partition("\n### ")[0]
        for method, keys in table["rows"].items():
            place = f"{page}, {title}, {method}"
            own = runs.of(keys)[0]
            shown.add(own.config_id)
            alike = sorted(runs.alike(own), key=lambda run: run.rank)
            best = {run.seed: run.id for run in alike}
            yield place + ": runs", keys, [best[seed] for seed in sorted(best)]
            yield place + ": row", f"\n| {method} |" in text, True
    for run in runs.runs:
        if not run.is_twin:
            yield f"{run.name}: in a table", run.config_id in shown, True


def check_rows(
    rows: list[dict[str, Any]], runs: Runs, pages: Pages
) -> Iterator[Check]:
    """Compare AdaGC's rows beside GlobalGC's; the runs allow no others."""
    readmes = {page for page in pages if page.startswith("README")}
    found = set()
    stated: dict[str, list[float]] = {}
    for row in rows:
        label, compared, _, length, *_ = row["line"]
        place, situation = f"{ALL_ROWS}, {label}, {compared}", row["situation"]
        cell = next(iter(row["cells"].values()))
        own, other = runs.of([cell["keys"][0], cell["other_keys"][0]])
        steps = int(length.replace(",", ""))
        found.add((own.config_id, other.config_id, steps))
        pairs = {
            m: by_length(runs.pairs(own, other, m)).get(steps, [])
            for m in ROWS[situation]
        }
        num = max(map(num_seeds, pairs.values()))
        cells = [cell_text(measure, pairs[measure], num) for measure in pairs]
        line = [label, compared, str(num), f"{steps:,}", *cells]
        held = {m: pairs_ids(own) for m, own in pairs.items() if own}
        yield from compare(place, row, {"line": line, "cells": held})
        on = [ALL_ROWS]
        if row["is_named"]:
            on += [PAGE, *(readmes if situation != "calm" else [])]
            name = label.partition(", calm")[0]
            for measure, text in zip(pairs, cells, strict=True):
                text = text.partition(" (")[0]
                text = "0.000" if text[1:] == "0.000" else text
                if pairs[measure] and measure != EVENTS:
                    stated[f"{name} ({text})"] = limits_of(measure, pairs)
        for page in on:
            text = f"| {' | '.join(line)} |"
            yield f"{page}: {text}", text in pages[page], True
        if situation == "faults" and "AdaGC," not in compared:
            yield f"{place}: on the page", row["is_named"], True
    answer = " ".join(pages[PAGE].partition("\n## What do I gain")[0].split())
    for match in re.finditer(r" \(([-+]?\d([^()a-z]| and )*)\)", answer):
        before = answer[: match.start()]
        last = max(DIRECTIONS, key=lambda word: before.rfind(f" {word} "))
        for number in match[1].split(" and "):
            text = f"{before} ({number})"
            known = [stated[t] for t in stated if text.endswith(t)]
            is_right = any(DIRECTIONS[last](*limits) for limits in known)
            place = f"{PAGE}: {last} ...{text[-40:]} in the answer"
            yield place, is_right, True
    for own, other, steps in possible_rows(runs):
        is_there = (own.config_id, other.config_id, steps) in found
        place = f"{ALL_ROWS}: {own.name} beside {other.name}, {steps} steps"
        yield place, is_there, True


def limits_of(measure: str, pairs: dict[str, list[Pair]]) -> list[float]:
    """95% limits of a difference, of masses of the logarithm of their ratio."""
    own = pairs[measure]
    d = log_ratios(own) if measure == MASS else differences(own, measure)
    return mean_limits(d)[1:]


def pairs_ids(pairs: list[Pair]) -> dict[str, list[str]]:
    """Runs of both sides, as the report names them."""
    sides = zip(("keys", "other_keys"), zip(*pairs, strict=True), strict=True)
    return {name: [run.id for run in side] for name, side in sides}


class Comparison(SimpleNamespace):
    """One of a verdict's comparisons, tested again; has its fields."""

    def __init__(
        self, fields: dict[str, Any], runs: Runs, is_once: bool
    ) -> None:
        super().__init__(**_ABSENT | fields)
        names = ("keys", "other_keys", "beside_keys")
        first, second, beside = (runs.of(fields.get(n, ())) for n in names)
        self.pairs: list[Pair] = []
        if self.measure == WRONG:
            self.values = wrong_percent(runs)
            self.num_seeds = None if self.values else 0
        self.is_run = self.num_seeds != 0
        if first and second and self.is_run:
            pairs = runs.pairs(first[0], second[0], self.measure)
            own = self.seeds or {run.seed for run, _ in pairs}
            self.pairs = [pair for pair in pairs if pair[0].seed in own]
            if is_once:
                self.pairs = once(self.pairs)
            if self.measure != EVENTS:
                self.pairs = longest(self.pairs)
            if is_once:
                beside = [run for run in beside if run.series]
            first, second = map(list, zip(*self.pairs, strict=True))
        self.first, self.second = first, second
        self.num = len({run.seed for run in first})
        self.is_enough = bool(self.values) or self.num >= SEEDS
        self.is_broken = self.is_blind = self.is_no_fewer = False
        self.alike: float | None = None
        if self.measure == EVENTS and self.is_run:
            num_own = total([*first, *beside])[0]
            self.is_broken = self.expect == "zero" and num_own > 0
            if self.is_broken and self.pairs:
                (k1, t1), (k2, t2) = total(first), total(second)
                b, t = counts(second)
                none = [stats.binom.cdf(0, k2, t1 / (t1 + t2))]
                none += sign_flip(-b / t)[:1]
                is_as_many = bool(k1 * t2 >= k2 * t1)
                self.is_no_fewer = is_as_many and max(none) <= ALPHA / 2
            self.is_blind = bool(second) and not num_own + total(second)[0]
        elif self.pairs:
            self.d = differences(self.pairs, self.measure, self.times)
        self.p = self._test() if self.is_run else {}

    def _test(self) -> dict[str, float]:
        """Test what is expected, its opposite, no difference, fewer events."""
        is_bound, is_rate = self.expect == "at most", self.measure == EVENTS
        test = self._test_events if is_rate else self._test_values
        less, greater, equal = self._test_bound() if is_bound else test()
        names = ["p_for", "p_against"][:: -1 if self.expect == "higher" else 1]
        p = dict(zip(names, (less, greater), strict=True))
        p |= {} if equal is None else {"p_equal": equal}
        return p | ({"p_for": 1.0, "p_fewer": less} if self.is_broken else {})

    def _test_bound(self) -> Tests:
        """Of runs, which all have to keep it; of one number; of several."""
        if len({*self.values}) > 1:
            self.shown = f"{np.mean(self.values):.4g}"
            p = stats.ttest_1samp(self.values, self.bound, alternative="less")
            return float(p.pvalue), 1 - float(p.pvalue), None
        own = [run.measures[self.measure] for run in self.first]
        worst = max(self.values or own)
        self.shown = f"{'' if self.values else 'largest '}{worst:.3g}"
        over = worst - self.bound
        is_one = len(self.values) == 1
        close = is_one and abs(over) <= (self.margin or -1.0)
        equal = float(not close) if is_one else None
        return float(over > 0 or close), float(over <= 0 or close), equal

    def _test_values(self) -> Tests:
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

    def _test_events(self) -> Tests:
        """The larger of the pooled and the clustered p; without events mass."""
        k1, t1 = total(self.first)
        f: float | None = self.margin
        if not self.second:
            rare = stats.poisson.cdf(k1, (f or 0) * t1 / 1000)
            return float(not k1), 1.0 if k1 else float(rare), None
        if self.is_blind:
            known, far = having(self.pairs, MASS), math.log(2)
            low = high = (1.0, 1.0)
            if num_seeds(known) >= SEEDS:
                logs = log_ratios(known)
                low, high = sign_flip(logs + far), sign_flip(logs - far)
            self.alike = max(low[1], high[0])
            if self.expect == "no worse":
                return *high, None
            within = max(low[1], high[0]) if self.expect == "higher" else None
            return low[0], high[1], within
        k2, t2 = total(self.second)
        (a, s), (b, t) = counts(self.first), counts(self.second)
        ratio = (f or 1.0) if self.expect == "no worse" else 1.0
        less, greater = sign_flip(a / s - ratio * b / t)

        def below(factor: float) -> float:
            share = factor * t1 / (factor * t1 + t2)
            return float(stats.binom.cdf(k1, k1 + k2, share))

        def above(factor: float) -> float:
            share = t1 / (t1 + factor * t2)
            return float(stats.binom.sf(k1 - 1, k1 + k2, share))

        if self.expect == "no worse":
            over = ratio * t1 / (ratio * t1 + t2)
            more = float(stats.binom.sf(k1 - 1, k1 + k2, over))
            return max(below(ratio), less), max(more, greater), None
        equal = f and max(below(f), above(f))
        less, greater = max(below(1), less), max(above(1), greater)
        return less, greater, equal

    def recomputed(self) -> dict[str, Any]:
        """What has to stand in the report: p, pairs, number of seeds."""
        names = ("p_for", "p_against", "p_equal", "p_fewer")
        found: dict[str, Any] = {name: self.p.get(name) for name in names}
        found["is_blind"] = self.is_blind or None
        found["p_alike"] = self.alike
        found["is_no_fewer"] = self.is_no_fewer or None
        found |= pairs_ids(self.pairs) if self.pairs else {}
        found |= {"values": self.values} if self.measure == WRONG else {}
        if not self.values:
            found["num_seeds"] = self.num if self.p else 0
        return found

    def outcome(self, verdict: dict[str, Any]) -> str:
        """What it says for itself."""
        p = self.p
        if not p:
            return "missing"
        num = len(verdict["comparisons"])
        is_opposite = num * p["p_against"] <= ALPHA / 2
        if self.is_broken:
            if self.is_no_fewer:
                return "no fewer"
            if self.is_enough and p["p_fewer"] <= ALPHA / 2:
                return "part"
            if self.is_enough and is_opposite:
                return "against"
            return "open"
        if not self.is_enough:
            return "against" if p["p_against"] == 0 else "open"
        if p.get("p_equal", 1.0) <= ALPHA:
            return "small"
        if p["p_for"] <= ALPHA / 2:
            return "holds"
        if is_opposite:
            return "against"
        if self.is_blind and self.expect not in ("higher", "no worse"):
            if not verdict["control_is_calm"]:
                return "calm"
            is_alike = self.alike is not None and self.alike <= ALPHA
            return "small" if is_alike else "open"
        return "open"

    def number(self) -> str:
        """Return it in one number; "" if it was not tested."""
        if self.expect == "occurs":
            k, t = total(self.first)
            return f"{self.method}: {k:.0f} events in {t:,.0f} steps"
        if self.expect == "at most" and self.p:
            return f"{self.shown} (bound {self.bound:g})"
        if not self.pairs:
            return ""
        p_for = self.p.get("p_fewer", self.p["p_for"])
        p = f", p {min(p_for, self.p['p_against']):.2g}"
        if self.measure == EVENTS:
            value, low, high = ratio_limits(self.pairs)
            text = f", ratio {value:.2g} ({low:.2f}-{high:.2g}){p}"
            if math.isnan(value):
                text = f" in {total(self.first)[1]:,.0f} steps each"
            text = f"{change(self.pairs, EVENTS)} events{text}"
            return text.replace("inf", "∞") + beside(self.pairs, (MASS, PRICE))
        mean, low, high = mean_limits(self.d)
        unit = next((u for u in UNITS if self.measure in UNITS[u]), "")
        price = beside(self.pairs, (PRICE,)) if self.measure in GAINS else ""
        text = f"{mean:+.3g}{unit} ({low:+.3g} to {high:+.3g}){p}{price}"
        if self.times != 1:
            seen = change(self.pairs, self.measure)
            text = f"{seen}; second minus {self.times:g} × first: {text}"
        return text


def check_verdicts(
    verdicts: list[dict[str, Any]], runs: Runs, pages: Pages
) -> Iterator[Check]:
    """Compare every claim's tests and verdict, and that of a later rule."""
    judged, later = (judge(verdicts, runs, rule) for rule in (False, True))
    all_of = zip(verdicts, judged, later, strict=True)
    for v, (fields, own), (other, _) in all_of:
        fields["other_pairs"] = other["verdict"]
        yield from compare(v["id"], v, fields)
        yield from check_claim(v, own, pages)


def judge(
    verdicts: list[dict[str, Any]], runs: Runs, is_once: bool
) -> Iterator[tuple[dict[str, Any], list[Comparison]]]:
    """Every claim's part of the report, and its comparisons."""
    tested, premises = (
        [[Comparison(c, runs, is_once) for c in v[name]] for v in verdicts]
        for name in ("comparisons", "premises")
    )
    p = np.array([*map(claim_p, tested)])
    primary = [i for i, v in enumerate(verdicts) if v["primary"]]
    p[primary] = np.transpose([holm(side) for side in p[primary].T])
    for v, own, given, both in zip(verdicts, tested, premises, p, strict=True):
        yield (
            {
                "comparisons": [c.recomputed() for c in own],
                "premises": [c.recomputed() for c in given],
                "p_for": float(both[0]),
                "p_against": float(both[1]),
                "verdict": label_of(v, own, given, *both),
            },
            own,
        )


def claim_p(comparisons: list[Comparison]) -> tuple[float, float]:
    """Return the claim's p for and against, before Holm."""
    against = [
        c.p["p_against"]
        for c in comparisons
        if c.p and (c.is_enough or c.p["p_against"] == 0)
    ]
    p_for = max((c.p.get("p_for", 1.0) for c in comparisons), default=1.0)
    return p_for, min([1.0, *(len(comparisons) * p for p in against)])


def holm(p_values: np.ndarray) -> list[float]:
    """Holm's p of several claims, in their order."""
    adjusted = [min(1.0, sum(p_values >= p) * p) for p in p_values]
    pairs = [*zip(p_values, adjusted, strict=True)]
    return [max(a for q, a in pairs if q <= p) for p in p_values]


def label_of(
    verdict: dict[str, Any],
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


def check_claim(
    verdict: dict[str, Any], own: list[Comparison], pages: Pages
) -> Iterator[Check]:
    """Compare label, number and a later rule's verdict in a claim's lines."""
    words = {"reproduced": "holds", "contradicted": "does not hold"}
    label, name = verdict["verdict"], verdict["id"]
    right = words.get(label, label) if verdict["extension"] else label
    text = pages[CLAIMS].partition(f"\n### {name}\n")[2].partition("\n##")[0]
    found = re.findall(r"(?m)^\*\*(.+)\*\*$", text)
    yield f"{CLAIMS}, {name}", found, [right]
    flips = verdict["other_pairs"] != label
    yield f"{name}: says that it flips", LATER_RULE in text, flips
    numbers = {"–", ""}
    for c in own:
        number = c.number()
        numbers |= {number, f"{c.other} → {c.method}: {number}"}
    seen = verdict["number"]
    is_right = numbers.issuperset(seen.split("; but "))
    yield f"{name}: number", seen, seen if is_right else "?"
    row = rf"(?m)^\| \[.+#{name}\) \| \*\*(.+?)\*\* \| (.+?) \|"
    for page in (PAGE, CLAIMS) if verdict["primary"] else (CLAIMS,):
        rows = re.findall(row, pages[page])
        yield f"{page}, {name}: row", rows, [(right, seen or "–")]
    if not verdict["extension"]:
        row = rf"(?m)^\| \*\*(.+?)\*\* \| .*\[{name}\]"
        found = re.findall(row, pages[PAGE])
        yield f"{PAGE}, {name}: verdict", found, [right]


def check_sentences(pages: Pages) -> Iterator[Check]:
    """No gain stands without its price, and no pair of zeros alone."""
    gain = re.compile(r"\| (Spike mass|Spike events|Damage|尖峰|损害)")
    price = re.compile("Loss at the end|Validation loss|结束时的损失")
    for page in (p for p in pages if "results" in p or p.startswith("README")):
        for line in re.findall(r"(?m)^\|.*", pages[page]):
            place = f"{page}, {line}"
            if gain.search(line) and "window" not in line:
                yield f"{place}: a price", bool(price.search(line)), True
            if "0 → 0 events" in line and line.startswith("| ["):
                yield f"{place}: mass", "; mass " in line, True
