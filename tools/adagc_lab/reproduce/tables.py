# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of the pages, from ``results/`` alone.

A page says ``<!-- table: NAME -->`` where a table stands, up to
``<!-- end -->``; everything else on it is written by a person.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from adagc_lab.markdown import markdown_table
from adagc_lab.report.differences import LEAST, difference, fixed, shown
from adagc_lab.reproduce.pairs import OVER_REFERENCE, REFERENCE, Pairs
from adagc_lab.reproduce.rates import (
    NOT_RUN,
    rate_cells,
    rate_differences,
    rate_table,
    rates_why,
    screen,
    smallest_h,
)
from adagc_lab.reproduce.written import written_tables

SHOWN = ("GlobalGC 0.1", "AdaGC", "warmup_ema")
"""Methods of the tables, in their order."""

_ADVISED = 8
"""Fewer seeds give no advice."""

_BLOCK = re.compile(
    r"(<!-- table: (?P<name>[\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL
)


class Recipes:
    """The results by recipe, as ``configs/recipes.yaml`` groups them."""

    def __init__(self, rows: pd.DataFrame, path: Path) -> None:
        """``rows`` as :func:`.store.load` gives them."""
        groups = yaml.safe_load(path.read_text(encoding="utf-8"))
        aliases = groups.pop("aliases")
        self.rows = rows.assign(method=rows["method"].replace(aliases))
        self.situations: dict[str, dict[str, Pairs]] = {}
        for situation, recipes in groups.items():
            for name, sources in recipes.items():
                pairs = Pairs(self._of(sources), REFERENCE)
                self.situations.setdefault(situation, {})[name] = pairs

    def _of(self, sources: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        chosen = pd.Series(False, index=self.rows.index)
        for target, experiments in sources.items():
            own = self.rows["experiment"].isin(experiments)
            chosen |= (self.rows["target"] == target) & own
        return self.rows[chosen]

    def of_target(self, target: str, experiment: str) -> Pairs:
        """Return an experiment alone."""
        return Pairs(self._of({target: [experiment]}), REFERENCE)


def _compared(pairs: Pairs, method: str, steps: int, name: str) -> str:
    found = pairs.differences(method, steps, name)
    dead = int(np.isnan(found).sum())
    text = shown(difference(found)) if len(found) >= LEAST else "–"
    return text + f"; both diverged in {dead}" * bool(dead)


def _sums(pairs: Pairs, method: str, steps: int, name: str) -> str:
    others, ours = pairs.values(method, steps, name)
    return f"{sum(others):.0f} → {sum(ours):.0f}" if ours else "–"


def _sums_and_shared(pairs: Pairs, method: str, steps: int, name: str) -> str:
    sums = _sums(pairs, method, steps, name)
    shared = pairs.shared_peaks(method, steps)
    return sums if sums == "–" else f"{sums} ({shared})"


def _means(
    pairs: Pairs,
    method: str,
    steps: int,
    name: str,
    digits: int = 2,
    unit: str = "",
) -> str:
    means = [np.mean(x) for x in pairs.values(method, steps, name) if x]
    return " → ".join(fixed(x, digits) + unit for x in means) or "–"


_shares = functools.partial(_means, digits=0, unit="%")

_Column = tuple[str, Callable[[Pairs, str, int, str], str], str]

_SPIKING: list[_Column] = [
    ("Peaks above 0.5 nat", _sums, "peaks"),
    ("Peaks above 0.1 nat", _sums, "low_peaks"),
    ("Mean loss (nat)", _compared, "mean"),
    ("Loss of the last 500 steps (nat)", _compared, "end"),
    ("Median of the last 500 steps (nat)", _compared, "end_median"),
    ("Clipped", _shares, "clipped_percent"),
]
_CALM: list[_Column] = [
    ("Validation loss (nat)", _compared, "validation_loss"),
    ("Mean loss (nat)", _compared, "mean"),
    ("Loss of the last 500 steps (nat)", _compared, "end"),
    ("Peaks above 0.5 nat (at the same step)", _sums_and_shared, "peaks"),
    ("Clipped", _shares, "clipped_percent"),
]
_PRICE: list[_Column] = [
    ("Steps 1,000 to 1,500 (nat)", _compared, "early"),
    ("Last 500 steps (nat)", _compared, "end"),
    ("Change (nat)", _compared, "change"),
]
_FAULTS: list[_Column] = [
    ("Fault peaks above 0.5 nat", _sums, "fault_peaks"),
    ("Worst rise, mean (nat)", _means, "worst_rise"),
    ("Damage over its own clean run (nat)", _compared, "damage"),
    ("Damage over GlobalGC 1's clean run (nat)", _compared, OVER_REFERENCE),
]
_AT_FIRST = "Damage of 1,000 steps over its own clean run (nat)"
_TIMING = [*_FAULTS[:2], (_AT_FIRST, _compared, "damage_at_first"), _FAULTS[3]]


def _comparison(
    recipes: Mapping[str, Pairs],
    columns: Sequence[_Column],
    methods: Sequence[str] | None = SHOWN,
) -> str:
    """Table with a row per recipe, length and method; None: all methods.

    The first row of a recipe names it.
    """
    rows: list[list[str]] = []
    for recipe, pairs in recipes.items():
        name = recipe
        for steps in pairs.lengths():
            for method in methods or pairs.methods():
                counts = [
                    len(pairs.values(method, steps, measure)[1])
                    for _, format_cell, measure in columns
                    if format_cell is not _shares
                ]
                enough = [count for count in counts if count >= LEAST]
                if not enough:
                    continue
                ends = sorted({min(enough), max(enough)})
                number = " to ".join(map(str, ends))
                cells = [f(pairs, method, steps, x) for _, f, x in columns]
                rows.append([name, f"{steps:,}", method, number, *cells])
                name = ""
    reference = next(iter(recipes.values())).reference
    head = ["Recipe", "Steps", f"{reference} →", "Seeds"]
    head += [label for label, _, _ in columns]
    return markdown_table(head, rows, left=3) if rows else NOT_RUN


_MIXTRAL = "Mixtral's recipe"
_ERNIE = "ERNIE's recipe"
_HARM = "fault_peaks", OVER_REFERENCE
_ADVICE = {
    "Spikes: Llama-2, 64 sequences, beta2 0.999": (
        *("spiking", "Llama-2, beta2 0.999", "peaks", "mean"),
    ),
    f"Calm: {_MIXTRAL}": ("calm", "Mixtral 8x1B", "", "end"),
    f"Calm: {_ERNIE}": ("calm", f"{_ERNIE} (48 experts)", "", "end"),
    f"Faults: {_MIXTRAL}": (
        *("faults", f"{_MIXTRAL}, five kinds of faults", *_HARM),
    ),
    f"Early faults: {_ERNIE}": ("timing", f"{_ERNIE}, early faults", *_HARM),
    f"Late faults: {_ERNIE}": ("timing", f"{_ERNIE}, late faults", *_HARM),
}


def advice(recipes: Recipes) -> str:
    """Table of a few rows: a run like yours under each clip."""
    rows = []
    for label, (situation, recipe, count, name) in _ADVICE.items():
        pairs = recipes.situations[situation][recipe]
        methods = REFERENCE, *SHOWN
        cells = [_advised(method, pairs, count, name) for method in methods]
        rows.append([label, *cells])
    head = ["Your run", REFERENCE, *SHOWN]
    return markdown_table(head, rows, left=len(head))


def _advised(method: str, pairs: Pairs, count: str, name: str) -> str:
    """Return what enough seeds say, for each length of the runs."""
    parts = []
    for steps in pairs.lengths():
        losses = pairs.values(method, steps, name)[1]
        if len(losses) < _ADVISED:
            continue
        loss = _compared(pairs, method, steps, name)
        if method == REFERENCE:
            loss = fixed(np.mean(losses), 3)
        text = f"{steps:,} steps: loss {loss}"
        if count and method != REFERENCE:
            number = len(pairs.values(method, steps, count)[1])
            peaks = _sums(pairs, method, steps, count)
            text += f", {peaks} peaks in {number} seeds"
        parts.append(text)
    return "<br>".join(parts) or "too few seeds"


_OTHERS = (
    *("ClipByValue", "AGC", "Clippy", "Global AdaGC", "TensorWiseGC"),
    *("ZClip", "Skip-step", "GradientStabilizer", "SPAM"),
    *("StableAdamW, beta2 0.99, no clip", "ScaledEmbed-GlobalGC"),
    *("WeSaR-GlobalGC, rate 0.0003", "GlobalGC 1, rate 0.0003"),
    *("AdaGC, rate 0.0003", "release", "robust", "lambda_dev 1"),
)
_OWN = (
    *("no warm-up", "constant 0.5", "constant 1.0", "threshold 0.1"),
    *("lambda_abs", "t_start 0", "t_start 50", "t_start 150", "t_start 200"),
    *("t_start 500", "t_start 1000", "t_start 2000"),
    *("lambda_rel 1.03, beta 0.98", "lambda_rel 1.03, beta 0.999"),
    *("lambda_rel 1.05, beta 0.98", "lambda_rel 1.05, beta 0.999"),
    "warmup_ema, routed experts at 2",
)


def effort(rows: pd.DataFrame) -> str:
    """How many runs there are, of how many core-hours."""
    once = rows.drop_duplicates(["digest", "processor"])
    hours = (once["step_ms"] * once["steps"]).sum() / 3.6e6
    with_losses = int((once["num_losses"] > 0).sum())
    return (
        f"{len(once):,} runs of {hours:.0f} core-hours; {with_losses:,} of "
        "them have the losses of all steps.\n"
    )


_CHINESE = {
    "Your run": "您的训练",
    "Spikes: Llama-2, 64 sequences, beta2": "有尖峰：Llama-2，64 条序列，beta2",
    "Calm: (.*)'s recipe": r"平稳：\1 配方",
    "Faults: (.*)'s recipe": r"有故障：\1 配方",
    "Early faults: (.*)'s recipe": r"早期有故障：\1 配方",
    "Late faults: (.*)'s recipe": r"后期有故障：\1 配方",
    "too few seeds": "种子太少",
    r"peaks in (\d+) seeds": r"个尖峰（\1 个种子）",
    "loss": "损失",
    " steps": " 步",
}
"""Patterns of :func:`advice` and what the Chinese page says instead."""


def _in_chinese(table: str) -> str:
    for pattern, chinese in _CHINESE.items():
        table = re.sub(pattern, chinese, table)
    return table


def make_tables(
    rows: pd.DataFrame, recipes_file: Path, results: Path
) -> dict[str, str]:
    """Return every table by its name."""
    recipes = Recipes(rows, recipes_file)
    by = recipes.situations
    cells = rate_cells(recipes.rows, ["rates", "cures"])
    decaying = rate_cells(recipes.rows, ["decay-rates"])
    decay = recipes.of_target("rates", "decay")
    names = "beta2-0.999", "beta2-0.95"
    epsilon = {x: recipes.of_target("extension-epsilon", x) for x in names}
    half = recipes.of_target("ernie-faults", "half-rate")
    price = recipes.of_target("price-over-time", "mixtral")
    llama = Pairs(pd.DataFrame(by["calm"]["Llama-2 7B"].rows), "AdaGC")
    return {
        "advice": advice(recipes),
        "advice-cn": _in_chinese(advice(recipes)),
        "spiking": _comparison(by["spiking"], _SPIKING),
        "calm": _comparison(by["calm"], _CALM),
        "faults": _comparison(by["faults"], _FAULTS),
        "rates": rate_table(cells),
        "rate-differences": rate_differences(cells),
        "spike-screen": screen(recipes.rows),
        "rates-ernie": rate_table(rate_cells(recipes.rows, ["ernie"])),
        "rate-decay": _comparison({"Llama-2 on prose": decay}, _CALM, None),
        "decay-rates": rate_table(decaying),
        "decay-differences": rate_differences(decaying),
        "half-rate": _comparison({"Llama-2": half}, _SPIKING, None),
        "rates-why": rates_why(recipes.rows),
        "price-over-time": _comparison({"Mixtral 8x1B": price}, _PRICE),
        "smallest-h": smallest_h(recipes.rows),
        "others-spiking": _comparison(by["spiking"], _SPIKING[:3], _OTHERS),
        "others-calm": _comparison(by["calm"], _CALM, _OTHERS),
        "others-faults": _comparison(
            by["faults"], [_FAULTS[0], _FAULTS[3]], _OTHERS
        ),
        "own-spiking": _comparison(by["spiking"], _SPIKING[:3], _OWN),
        "own-calm": _comparison(by["calm"], _CALM, _OWN),
        "own-faults": _comparison(by["faults"], _FAULTS, _OWN),
        "fault-timing": _comparison(by["timing"], _TIMING),
        "own-of-adagc": _comparison({"Llama-2 7B": llama}, _CALM[:1], _OWN),
        "epsilon": _comparison(epsilon, _SPIKING, None),
        "effort": effort(rows),
        **written_tables(results),
    }


def fill(text: str, tables: Mapping[str, str], page: str = "") -> str:
    """Return a page with its tables; a ValueError names an unknown one."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            raise ValueError(f"{page}: no table {match['name']!r}")
        return f"{match[1]}\n{tables[match['name']].rstrip()}\n\n{match[4]}"

    return _BLOCK.sub(block, text)


def blocks(text: str) -> list[str]:
    """Return the tables that stand on a page."""
    return [match[3] for match in _BLOCK.finditer(text)]
