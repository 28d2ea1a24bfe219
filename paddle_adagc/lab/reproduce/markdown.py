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
"""Tables and verdicts as Markdown, from results alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.formatting import (
    Value,
    format_list,
    format_spread,
)
from paddle_adagc.lab.report.measures import run_measures
from paddle_adagc.lab.reproduce.results import ExperimentResult, TargetResult
from paddle_adagc.lab.reproduce.statistics import (
    MAX_PAIRS,
    paired_differences,
    sign_flip_test,
)
from paddle_adagc.lab.reproduce.verdicts import Verdict


class Column(NamedTuple):
    """A column of an experiment's table."""

    title: str
    name: str
    """Name of the measure in the results."""

    form: Callable[[Sequence[Value]], str]
    change: str | None = None
    """Format of its paired difference to the first method, if that is shown."""


_LISTED = partial(format_list, spec=",.1f")
COLUMNS = (
    *(
        Column(measure.title, measure.name, measure.form, measure.change)
        for measure in run_measures()
        if measure.level != "detail"
    ),
    Column(
        "Of GlobalGC (%)",
        "percent_of_global_gc",
        partial(format_spread, spec=".1f"),
    ),
    Column("Paper: GlobalGC (GPU h)", "paper_global_gc_hours", _LISTED),
    Column("Paper: AdaGC (GPU h)", "paper_adagc_hours", _LISTED),
    Column("Paper: saved (GPU h)", "paper_hours_saved", _LISTED),
    Column(
        "Plan: saved (GPU h)",
        "predicted_hours_saved",
        partial(format_list, spec=".3f"),
    ),
    Column("Plan: GlobalGC (µs a step)", "global_gc_us", _LISTED),
    Column("Plan: AdaGC (µs a step)", "adagc_us", _LISTED),
)
_TIMES_OF_RUNS = ("clip_ms", "step_ms")
"""Not shown beside losses: other runs took part of the machine."""


def experiment_markdown(experiment: ExperimentResult, level: int = 4) -> str:
    """Heading, description, and the table: a line per method.

    Counts are listed seed by seed, other numbers are mean ± sample standard
    deviation; ``Δ`` is the paired difference to the first method with the p of
    the two-sided exact sign-flip test.
    """
    methods, shown = experiment.methods, _shown(experiment)
    labels = [label for label, _ in shown]
    head = ["", *labels, *(f"Paper: {label}" for label in experiment.paper)]
    rows = []
    for method in methods:
        cells = [render(method) for _, render in shown]
        cells += [
            f"{values[method]:g}" if method in values else "–"
            for values in experiment.paper.values()
        ]
        rows.append([method, *cells])
    return (
        f"{'#' * level} {experiment.title}\n\n"
        + f"{experiment.description} {_extent(experiment)}".strip()
        + f"\n\n{markdown_table(head, rows)}"
    )


def target_markdown(result: TargetResult, level: int = 3) -> str:
    """All experiments of a target, and what a budget left out."""
    parts = [f"{'#' * level} {result.title}: `{result.target}`\n"]
    if result.cuts:
        parts.append(" ".join(result.cuts) + "\n")
    parts += [
        experiment_markdown(experiment, level + 1)
        for experiment in result.experiments
    ]
    return "\n".join(parts)


def verdicts_markdown(verdicts: Sequence[Verdict], where: str = "Paper") -> str:
    """A line per claim: where, what it says, verdict, evidence.

    Args:
        verdicts: The lines.
        where: Heading of the first column.
    """
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        said = claim.claim + (f" ({claim.paper})" if claim.paper else "")
        why = verdict.evidence + (f". {claim.note}" if claim.note else "")
        rows.append([claim.where, said, f"**{verdict.label}**", why])
    head = [where, "Claim", "Verdict", "What decided it"]
    return markdown_table(head, rows, left=4)


def counted(verdicts: Sequence[Verdict]) -> str:
    """``"12 reproduced, 3 not reproduced, 9 not testable here"``."""
    counts = Counter(verdict.label for verdict in verdicts)
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _shown(
    experiment: ExperimentResult,
) -> list[tuple[str, Callable[[str], str]]]:
    """Columns that have a value: label, and the text by method."""
    shown: list[tuple[str, Callable[[str], str]]] = []
    has_losses = _has(experiment, "final_loss")
    for column in COLUMNS:
        if not _has(experiment, column.name) or (
            has_losses and column.name in _TIMES_OF_RUNS
        ):
            continue
        shown.append((column.title, partial(_cell, experiment, column)))
        if column.change is not None and len(experiment.methods) > 1:
            label = f"Δ to {experiment.methods[0]}"
            shown.append((label, partial(_compared, experiment, column)))
    return shown


def _cell(experiment: ExperimentResult, column: Column, method: str) -> str:
    return column.form(experiment.values(method, column.name))


def _has(experiment: ExperimentResult, measure: str) -> bool:
    return any(measure in cell.measures for cell in experiment.cells)


def _compared(experiment: ExperimentResult, column: Column, method: str) -> str:
    reference = experiment.methods[0]
    values = experiment.values(method, column.name)
    others = experiment.values(reference, column.name)
    pairs = [
        (a, b)
        for a, b in zip(values, others, strict=True)
        if a is not None and b is not None
    ]
    if method == reference or not 0 < len(pairs) <= MAX_PAIRS:
        return "–"
    differences = paired_differences(*zip(*pairs, strict=True))
    text = _signed(differences.tolist(), column.change or "+.4g")
    return f"{text} (p {sign_flip_test(differences).p:.2g})"


def _signed(differences: list[float], spec: str) -> str:
    """Mean ± spread, or the value, with the mean's sign."""
    text = format_spread(differences, spec)
    return text.replace("± +", "± ")


def _extent(experiment: ExperimentResult) -> str:
    steps = {cell.measures.get("steps") for cell in experiment.cells} - {None}
    if not steps:
        return ""
    num_seeds = len(experiment.seeds)
    longest = max(step for step in steps if step is not None)
    least = min(1.0, 2 / 2**num_seeds)
    seeds = ", ".join(map(str, experiment.seeds))
    skip = experiment.skip_steps
    judged = [
        f"from step {skip + window:,} (window {window:,})"
        for window in (1000, 200)
        if _has(experiment, f"judged_{window}")
    ]
    spikes = f"; spikes are judged {', '.join(judged)}" if judged else ""
    return (
        f"{num_seeds} seed{'s' * (num_seeds > 1)} ({seeds}) of {longest:,.0f} "
        f"steps, the first {skip:,} not judged{spikes}; least possible p "
        f"{_short(least)}."
    )


def _short(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else str(value)
