# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The results in two minutes: figures, their numbers, the README's block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.forest import ForestRow, forest_svg
from paddle_adagc.lab.reproduce.claims import SPIKE_EVENTS, Figure, FigureRow
from paddle_adagc.lab.reproduce.comparisons import (
    EVENTS,
    JUDGED,
    interval,
    rate_of,
)
from paddle_adagc.lab.reproduce.pool import PooledResults
from paddle_adagc.lab.reproduce.results import RunResult, paired
from paddle_adagc.lab.reproduce.statistics import (
    paired_differences,
    rate_ratio,
)
from paddle_adagc.lab.reproduce.verdicts import Verdict

MASS = "spike_mass"
RATIOS = (SPIKE_EVENTS, MASS)
LEAST_MASS = 0.01
"""Smaller masses count as this, so that a ratio of zero has a logarithm."""

START, END = "<!-- results -->", "<!-- end -->"
"""Marks of the block in the README that the results determine."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Two methods of one experiment, compared on paired seeds."""

    row: FigureRow
    measure: str
    value: float
    """A ratio of rates or of geometric means, or a mean difference."""

    low: float
    high: float
    """Its 95% limits."""

    runs: list[RunResult]
    others: list[RunResult]

    @property
    def text(self) -> str:
        """``"0.10 (0.00-0.70)"`` or ``"+0.061 (+0.055 to +0.068)"``."""
        if self.measure in RATIOS:
            text = f"{self.value:.2g} ({self.low:.2g}-{self.high:.2g})"
            return text.replace("inf", "∞")
        spec = "+.1f" if "area" in self.measure else "+.3f"
        return f"{self.value:{spec}} ({self.low:{spec}}, {self.high:{spec}})"

    @property
    def change(self) -> str:
        """The other's number and this one's: ``"10 → 1"``."""
        if self.measure == SPIKE_EVENTS:
            rates = rate_of(self.runs), rate_of(self.others)
            return f"{rates[1].events} → {rates[0].events}"
        first, second = (
            math.fsum(r.measures[self.measure] for r in side) / len(side)
            for side in (self.runs, self.others)
        )
        spec = ".4f" if "loss" in self.measure else ".3g"
        return f"{second:{spec}} → {first:{spec}}"

    def as_json(self) -> dict[str, Any]:
        """What an independent check needs."""
        return {
            "label": self.row.label,
            "measure": self.measure,
            "keys": [run.run_id for run in self.runs],
            "other_keys": [run.run_id for run in self.others],
            "value": self.value,
            "low": self.low,
            "high": "inf" if math.isinf(self.high) else self.high,
            "text": self.text,
            "change": self.change,
        }


def estimate(
    figure: Figure, row: FigureRow, source: PooledResults
) -> Estimate | None:
    """Compare the two methods of a row; None without a pair."""
    measure = row.measure or figure.measure
    runs, others = (
        source.runs(row.target, row.experiment, name)
        for name in (row.method, row.to)
    )
    is_events = measure == SPIKE_EVENTS
    pairs = [
        pair
        for pair in paired(runs, others, EVENTS if is_events else measure)
        if not is_events or all(run.measures.get(JUDGED) for run in pair)
    ]
    if not pairs:
        return None
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    if is_events:
        found = rate_ratio(rate_of(first), rate_of(second))
        return Estimate(row, measure, *found, first, second)
    values, references = (
        [run.measures[measure] for run in side] for side in (first, second)
    )
    if measure == MASS:
        logs = np.log(np.maximum(values, LEAST_MASS)) - np.log(
            np.maximum(references, LEAST_MASS)
        )
        low, high = (math.exp(x) for x in interval(logs))
        middle = math.exp(float(logs.mean()))
        return Estimate(row, measure, middle, low, high, first, second)
    differences = paired_differences(values, references)
    mean = float(differences.mean())
    return Estimate(row, measure, mean, *interval(differences), first, second)


class Summary:
    """The figures of ``claims.yaml`` and what follows from them."""

    def __init__(
        self, figures: Sequence[Figure], source: PooledResults
    ) -> None:
        self.figures = {
            figure.file: (
                figure,
                [
                    found
                    for row in figure.rows
                    if (found := estimate(figure, row, source)) is not None
                ],
            )
            for figure in figures
        }

    def rows(self, measure: str) -> list[Estimate]:
        """All rows of the headline figures of a measure."""
        return [
            row
            for figure, rows in self.figures.values()
            if figure.measure == measure and figure.headline
            for row in rows
        ]

    def svgs(self) -> dict[str, str]:
        """Content of each figure by its file."""
        return {
            file: forest_svg(
                figure.title,
                [
                    ForestRow(r.row.label, r.value, r.low, r.high, r.text)
                    for r in rows
                ],
                is_ratio=figure.measure in RATIOS,
                margin=None if figure.measure in RATIOS else figure.margin,
            )
            for file, (figure, rows) in self.figures.items()
            if rows
        }

    def as_json(self) -> list[dict[str, Any]]:
        """Rows of all figures for an independent check."""
        return [
            {
                "file": file,
                "headline": figure.headline,
                "rows": [row.as_json() for row in rows],
            }
            for file, (figure, rows) in self.figures.items()
        ]

    def answers(self) -> dict[str, str]:
        """Lists of proxies for the sentences of the page."""
        events, calm = self.rows(SPIKE_EVENTS), self.rows("validation_loss")
        faults = self.rows("excess_area")
        faults = [r for r in faults if r.measure == "excess_area"]
        return {
            "fewer": _listed([r for r in events if r.high < 1], "change"),
            "not_fewer": _listed([r for r in events if r.high >= 1], "change"),
            "higher": _listed([r for r in calm if r.low > 0.01], "text"),
            "alike": _listed(
                [r for r in calm if r.low > -0.01 and r.high < 0.01], "text"
            ),
            "better_faults": _listed([r for r in faults if r.high < 0], "text"),
            "worse_faults": _listed([r for r in faults if r.low > 0], "text"),
        }

    def table(self, head: Sequence[str], names: dict[str, str]) -> str:
        """Every row of the headline figures; ``names`` calls the measures."""
        rows = [
            [
                r.row.label,
                names[r.measure],
                str(len(r.runs)),
                r.change,
                r.text,
            ]
            for figure, estimates in self.figures.values()
            for r in estimates
            if r.measure in names and figure.headline
        ]
        return markdown_table(head, rows, left=2)


def _listed(rows: Sequence[Estimate], what: str) -> str:
    names = [f"{row.row.label} ({getattr(row, what)})" for row in rows]
    return ", ".join(names) if names else "none"


_ENGLISH = """\
AdaGC as written against GlobalGC, paired seeds on proxies of 0.1 to 1.2 million
parameters on CPU cores: how a clip reacts to an outlier, not what a large run
gains. Events and mass: the same seeds without faults, set up to spike. Faults:
`lambda_abs` 1, the paper's. In parentheses: 95% limits. \
"""
_CHINESE = """\
AdaGC（论文原版）与 GlobalGC 的配对比较：CPU 上 0.1M 至 1.2M 参数的小模型。
结果说明裁剪方法对异常梯度的反应，不代表大模型的收益。
尖峰各行不注入故障，但有意引发尖峰；故障各行用论文的 `lambda_abs` 1。
括号内为 95% 置信区间。\
"""
_READMES = {
    "README.md": (
        _ENGLISH,
        (
            "Proxy",
            "Measure",
            "Pairs",
            "GlobalGC → AdaGC",
            "Ratio or difference",
        ),
        {
            SPIKE_EVENTS: "spike events (ratio)",
            MASS: "spike mass, nat × steps a run (ratio)",
            "excess_area": "excess area under faults, nat × steps",
            "validation_loss": "validation loss of a calm run, nat",
        },
        "The paper's claims: [results in two minutes](docs/results.md).\n",
    ),
    "README_cn.md": (
        _CHINESE,
        ("小模型", "指标", "配对数", "GlobalGC → AdaGC", "比值或差值"),
        {
            SPIKE_EVENTS: "尖峰事件数（比值）",
            MASS: "每次训练的尖峰总量，nat × 步（比值）",
            "excess_area": "故障下损失超出部分的面积，nat × 步",
            "validation_loss": "平稳训练的验证损失，nat",
        },
        "[两分钟看懂结果](docs/results.md)逐条检验论文的结论。\n",
    ),
}


def readmes(summary: Summary, root: Path) -> dict[Path, str]:
    """Return the READMEs that have the marks, their blocks filled."""
    found = {}
    for name, (intro, head, names, link) in _READMES.items():
        path = root / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if START in text:
            block = f"{intro}{link}\n{summary.table(head, names)}"
            before, _, rest = text.partition(START)
            after = rest.partition(END)[2]
            found[path] = f"{before}{START}\n{block}{END}{after}"
    return found


def results_page(
    summary: Summary, verdicts: Sequence[Verdict], effort: str, counts: str
) -> str:
    """Four answers and a line per claim of the paper."""
    answers = summary.answers()
    answers["start"] = "\n".join(
        f"- [{v.claim.claim}](results/claims.md#{v.claim.id}) **{v.label}**"
        for v in verdicts
        if v.claim.id.startswith("gamma-start") and v.label != "not run"
    )
    rows = [
        [
            f"[{v.claim.claim}](results/claims.md#{v.claim.id})",
            v.claim.paper.rstrip("."),
            v.number or "–",
            f"**{v.label}**",
        ]
        for v in verdicts
        if not v.claim.extension
    ]
    table = markdown_table(["Claim", "Paper", "Here", "Verdict"], rows, left=4)
    return _PAGE.format(**answers, effort=effort, counts=counts, claims=table)


_PAGE = """\
{effort} {counts}

The runs are proxies of 0.1 to 1.2 million parameters on CPU cores. Everything
below is about them, not about the paper's models. "10 → 1": GlobalGC's number,
then AdaGC's, on the same seeds. Bars and parentheses are 95% limits.

## Should I use it?

- **GlobalGC spikes**: try it. AdaGC has fewer spike events on {fewer}.
  Fewer are not shown for {not_fewer}.
- **Nothing spikes**: no gain was found. The validation loss of calm runs is
  alike on {alike}; it is higher on {higher}.
- **Bad batches or broken hardware**: it depends. With `lambda_abs` 1, the
  paper's value, the damage in nat × steps is smaller than GlobalGC's on
  {better_faults}, larger on {worse_faults}.

## With which values?

The defaults are the paper's: `lambda_rel` 1.04, `beta` 0.99, `lambda_abs` 1,
`t_start` 100. What you lose in calm runs, and how well you are protected,
depends on how gamma starts. What was said before the runs, and what came out:

{start}

## What do I gain?

![Ratio of spike events by proxy](images/gain-events.svg)
![Ratio of spike mass by proxy](images/gain-mass.svg)
![Damage of faults by proxy](images/gain-faults.svg)

A spike event is a loss 10 standard deviations off the 1,000 before, neighbours
merged. A run that is disturbed again and again widens that measure and has
none. Spike mass sees it: the loss above the running median plus 5 MAD, summed;
only runs whose losses are stored have one. (b): the damage over GlobalGC's
clean run instead of the method's own, so that the price of calm steps counts.

## What do I lose?

![Validation loss of calm runs by recipe](images/price-calm.svg)

Shaded: differences below 0.01 nat count as none. gamma starts at the smallest
norm of the warm-up and may grow by 0.04% a step. Where norms rise several times
after it, as on the mixture-of-experts proxies, gamma stays on that ceiling for
the whole of these short runs, and nearly every tensor is clipped at nearly
every step. Other starts, on other seeds:

![Validation loss of calm runs by the start of gamma](images/price-start.svg)
![Damage of faults by the start of gamma](images/damage-start.svg)

`lambda_abs` and `constant 1.0` start gamma at 1, far above a tensor's norm;
until it has fallen, outliers below it pass. So the low start is the price and
the protection. The price fades with the length of a run. How much is left at
full size, these proxies cannot say. More:
[limitations](limitations.md#what-adagc-as-written-does-not-do).

## What did the paper claim, and what did we see?

A claim links to its rule, runs and tests. [The claims](results/claims.md) says
what the labels mean, and has the tests of our own. The runs:
[all](results/runs.md), [ERNIE's](results/ernie.md).

{claims}"""
