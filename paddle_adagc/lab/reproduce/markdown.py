# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and verdicts as Markdown, from results alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.formatting import (
    Value,
    format_list,
    format_spread,
)
from paddle_adagc.lab.report.measures import run_measures
from paddle_adagc.lab.reproduce.pool import longest, paired
from paddle_adagc.lab.reproduce.rates import EVENTS, JUDGED, judged
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    ExperimentResult,
    TargetResult,
)
from paddle_adagc.lab.reproduce.statistics import (
    MAX_PAIRS,
    Rate,
    paired_differences,
    sign_flip_p,
)
from paddle_adagc.lab.reproduce.verdicts import Verdict


class Column(NamedTuple):
    """A column of a table."""

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


RATE = "Events per 1,000 judged steps"
"""Label of the column after the counted events."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Runs to set beside one another, by method."""

    title: str
    description: str
    runs: Mapping[str, Sequence[CellResult]]
    """The first method is the reference."""

    skip_steps: int = 0
    paper: Mapping[str, Mapping[str, float]] = dataclasses.field(
        default_factory=dict
    )

    @classmethod
    def of(cls, experiment: ExperimentResult) -> Table:
        """Make the table of one experiment's own runs, without twins."""
        return cls(
            experiment.title,
            experiment.description,
            {
                method: [
                    cell
                    for cell in experiment.cells
                    if cell.method == method and not cell.is_clean_twin
                ]
                for method in experiment.methods
            },
            experiment.skip_steps,
            experiment.paper,
        )

    def values(self, method: str, measure: str) -> list[float | None]:
        """One value for every seed of the table, None where there is none."""
        by_seed = {
            run.seed: run.measures.get(measure)
            for run in longest(self.runs[method])
        }
        return [by_seed.get(seed) for seed in self.seeds]

    @property
    def seeds(self) -> list[int]:
        """Seeds of any method, in order."""
        return sorted({r.seed for runs in self.runs.values() for r in runs})

    @property
    def cells(self) -> list[CellResult]:
        """All runs."""
        return [run for runs in self.runs.values() for run in runs]

    def has(self, measure: str) -> bool:
        """Whether any run has this measure."""
        return any(measure in cell.measures for cell in self.cells)


def table_markdown(table: Table, level: int = 4) -> str:
    """Heading, description, and the table: a line per method.

    Counts are listed seed by seed, rates have their exact 95% limits, other
    numbers are mean ± sample standard deviation, or median and range; ``Δ`` is
    the paired difference to the first method with the p of the two-sided exact
    sign-flip test.
    """
    shown = _shown(table)
    labels = [label for label, _ in shown]
    head = ["", *labels, *(f"Paper: {label}" for label in table.paper)]
    rows = []
    for method in table.runs:
        cells = [render(method) for _, render in shown]
        cells += [
            f"{values[method]:g}" if method in values else "–"
            for values in table.paper.values()
        ]
        rows.append([method, *cells])
    return (
        f"{'#' * level} {table.title}\n\n"
        + f"{table.description} {_extent(table)}".strip()
        + f"\n\n{markdown_table(head, rows)}"
    )


def target_markdown(result: TargetResult, level: int = 3) -> str:
    """All experiments of a target, and what a budget left out."""
    parts = [f"{'#' * level} {result.title}: `{result.target}`\n"]
    if result.cuts:
        parts.append(" ".join(result.cuts) + "\n")
    parts += [
        table_markdown(Table.of(experiment), level + 1)
        for experiment in result.experiments
    ]
    return "\n".join(parts)


def verdicts_markdown(verdicts: Sequence[Verdict], where: str = "Paper") -> str:
    """Return a line per claim: where, what it says, verdict, evidence.

    Args:
        verdicts: The lines.
        where: Heading of the first column.
    """
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        said = claim.claim + (f" ({claim.paper})" if claim.paper else "")
        why = [*verdict.evidence.splitlines(), *filter(None, [claim.note])]
        label = f"**{verdict.label}**"
        rows.append([claim.where, said, label, "<br>".join(why)])
    head = [where, "Claim", "Verdict", "What decided it"]
    return markdown_table(head, rows, left=4)


def _shown(table: Table) -> list[tuple[str, Callable[[str], str]]]:
    """Columns that have a value: label, and the text by method."""
    shown: list[tuple[str, Callable[[str], str]]] = []
    has_losses = table.has("final_loss")
    for column in COLUMNS:
        if not table.has(column.name) or (
            has_losses and column.name in _TIMES_OF_RUNS
        ):
            continue
        shown.append((column.title, partial(_cell, table, column)))
        if column.name == EVENTS and table.has(JUDGED):
            shown.append((RATE, partial(_rate, table)))
        if column.change is not None and len(table.runs) > 1:
            label = f"Δ to {next(iter(table.runs))}"
            shown.append((label, partial(_compared, table, column)))
    return shown


def _cell(table: Table, column: Column, method: str) -> str:
    return column.form(table.values(method, column.name))


def _rate(table: Table, method: str) -> str:
    runs = judged(table.runs[method])
    if not runs:
        return "–"
    rate = Rate(
        *(int(sum(r.measures[name] for r in runs)) for name in (EVENTS, JUDGED))
    )
    low, high = rate.interval
    return f"{rate.value:.2f} ({low:.2f}-{high:.2f})"


def _compared(table: Table, column: Column, method: str) -> str:
    reference = next(iter(table.runs))
    pairs = paired(table.runs[method], table.runs[reference], column.name)
    if method == reference or not 0 < len(pairs) <= MAX_PAIRS:
        return "–"
    differences = paired_differences(
        *(
            [pair[side].measures[column.name] for pair in pairs]
            for side in (0, 1)
        )
    )
    text = format_spread(differences.tolist(), column.change or "+.4g")
    return f"{text.replace('± +', '± ')} (p {sign_flip_p(differences):.2g})"


def _extent(table: Table) -> str:
    """Seeds, steps, what is judged, and the processors."""
    runs = [run for method in table.runs.values() for run in longest(method)]
    lengths = sorted({run.num_steps for run in runs if run.num_steps})
    if not lengths:
        return ""
    steps = " to ".join(
        f"{n:,}" for n in dict.fromkeys((lengths[0], lengths[-1]))
    )
    seeds = table.seeds
    parts = [
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}) of {steps} steps, the first "
        f"{table.skip_steps:,} not judged"
    ]
    starts = [
        f"from step {table.skip_steps + window:,} (window {window:,})"
        for window in (1000, 200)
        if table.has(f"judged_{window}")
    ]
    if starts:
        parts.append(f"spikes are judged {', '.join(starts)}")
    processors = sorted({run.cpu_model for run in runs})
    parts.append(f"processor: {', '.join(processors)}")
    return "; ".join(parts) + "."
