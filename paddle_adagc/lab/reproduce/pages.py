# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables, verdicts and the docs' pages as Markdown, from the results alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.report.formatting import Value, format_spread
from paddle_adagc.lab.report.measures import listed, run_measures, spread
from paddle_adagc.lab.reproduce.claims import Claim, Figure, targets_of
from paddle_adagc.lab.reproduce.comparisons import (
    EVENTS,
    JUDGED,
    judged,
    rate_of,
)
from paddle_adagc.lab.reproduce.pool import (
    Catalogue,
    JoinedExperiment,
    PooledResults,
)
from paddle_adagc.lab.reproduce.results import (
    RESULTS,
    ExperimentResult,
    RunResult,
    TargetResult,
    longest,
    merge_results,
    paired,
    read_results,
    with_derived,
    write_results,
)
from paddle_adagc.lab.reproduce.statistics import (
    MAX_PAIRS,
    paired_differences,
    sign_flip_p,
)
from paddle_adagc.lab.reproduce.summary import Summary, readmes, results_page
from paddle_adagc.lab.reproduce.verdicts import LABELS, Verdict, counted, judge

PAGE = "results.md"
CLAIMS_PAGE = "results/claims.md"
RUNS_PAGE, ERNIE_PAGE = "results/runs.md", "results/ernie.md"
REPORT = "report.json"
"""Which runs stand in which row and behind which test, in the results' folder;
`tools/reproduce.py verify` recomputes every number from it."""

OTHER_RESULTS = ("gpu.jsonl", "mutation.jsonl", "soak.jsonl", "versions.jsonl")
"""Files beside those of targets, of other commands."""

_MADE = "<!-- made by `tools/reproduce.py report`: do not edit -->\n"
_HOW = """\
Each claim has a rule in `configs/claims.yaml`. Rules, margins and the six
primary claims were fixed after the runs that are marked "recorded before" and
before all others; the labels "partly", "not exercised", "not run" and
"computed" came after all runs of 2026-11, and so did splitting the paper's
claims from tests of our own. A verdict takes every run that fits the rule,
whichever experiment ordered it. Seeds were added in rounds, and a verdict takes
all of them; no correction is made for that.

{labels}
The runs are proxies of 0.1 to 1.2 million parameters on CPU cores: a verdict
is about them, not about the paper's models. Seeds are paired: the same initial
weights, batches and faults for all methods, on the same type of processor
where it was recorded ("recorded before" pairs with itself). A verdict takes at
least 8 paired seeds. Values are compared by the exact sign-flip test; spikes as
events per 1,000 judged steps, by the larger p of the exact conditional binomial
test and the sign-flip test of the seeds' rates. A claim and its opposite are
tested at 0.025 each, a difference smaller than the margin at 0.05. The six
primary claims share these errors (Holm); the others are descriptive.
"""

_RUNS = """\
## Runs

Counts are listed seed by seed (–: no such run), rates have their exact 95%
limits, other numbers are mean ± sample standard deviation, or median and range
of more than 5 seeds; "(3 of 8)": seeds that have a value. Δ is the mean of the
paired differences, p that of the two-sided exact sign-flip test.
"""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    name: str
    """Name of the measure in the results."""

    form: Callable[[Sequence[Value]], str]
    change: str | None = None
    """Format of its paired difference to the first method, if that is shown."""


COLUMNS = (
    *(
        Column(measure.title, measure.name, measure.form, measure.change)
        for measure in run_measures()
        if measure.level != "detail"
    ),
    Column(
        "Area over GlobalGC's clean run (nat × steps)",
        "excess_area_global",
        spread(".1f"),
        "+.1f",
    ),
    Column("Of GlobalGC (%)", "percent_of_global_gc", spread(".1f")),
    Column("Paper: GlobalGC (GPU h)", "paper_global_gc_hours", listed(",.1f")),
    Column("Paper: AdaGC (GPU h)", "paper_adagc_hours", listed(",.1f")),
    Column("Paper: saved (GPU h)", "paper_hours_saved", listed(",.1f")),
    Column("Plan: saved (GPU h)", "predicted_hours_saved", listed(".3f")),
    Column("Plan: GlobalGC (µs a step)", "global_gc_us", listed(",.1f")),
    Column("Plan: AdaGC (µs a step)", "adagc_us", listed(",.1f")),
)
_TIMES_OF_RUNS = ("clip_ms", "step_ms")
"""Not shown beside losses: other runs took part of the machine."""

RATE = "Events per 1,000 judged steps"
"""Label of the column after the counted events."""


def table_markdown(table: ExperimentResult, level: int = 4) -> str:
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
    for method in table.methods:
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
        table_markdown(experiment, level + 1)
        for experiment in result.experiments
    ]
    return "\n".join(parts)


def claim_markdown(verdict: Verdict) -> str:
    """A claim's section: what it says, its verdict and what decided it."""
    claim = verdict.claim
    paper = f" Paper: {claim.paper}." if claim.paper else ""
    why = [*verdict.evidence.splitlines(), *filter(None, [claim.note])]
    lines = "".join(f"- {line}\n" for line in why)
    return (
        f"### {claim.id}\n\n{claim.claim} *{claim.where}*.{paper}\n\n"
        f"**{verdict.label}**\n\n{lines}"
    )


def verdicts_markdown(verdicts: Sequence[Verdict], where: str = "Paper") -> str:
    """Return a line per claim: where, what it says, verdict, evidence."""
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        said = claim.claim + (f" ({claim.paper})" if claim.paper else "")
        why = [*verdict.evidence.splitlines(), *filter(None, [claim.note])]
        label = f"**{verdict.label}**"
        rows.append([claim.where, said, label, "<br>".join(why)])
    head = [where, "Claim", "Verdict", "What decided it"]
    return markdown_table(head, rows, left=4)


def _shown(table: ExperimentResult) -> list[tuple[str, Callable[[str], str]]]:
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
        if column.change is not None and len(table.methods) > 1:
            label = f"Δ to {table.methods[0]}"
            shown.append((label, partial(_compared, table, column)))
    return shown


def _cell(table: ExperimentResult, column: Column, method: str) -> str:
    return column.form(table.values(method, column.name))


def _rate(table: ExperimentResult, method: str) -> str:
    runs = judged(table.runs_of(method))
    if not runs:
        return "–"
    rate = rate_of(runs)
    low, high = rate.interval
    return f"{rate.value:.2f} ({low:.2f}-{high:.2f})"


def _compared(table: ExperimentResult, column: Column, method: str) -> str:
    reference = table.methods[0]
    pairs = paired(table.runs_of(method), table.runs_of(reference), column.name)
    if method == reference or not 0 < len(pairs) <= MAX_PAIRS:
        return "–"
    differences = paired_differences(
        [run.measures[column.name] for run, _ in pairs],
        [other.measures[column.name] for _, other in pairs],
    )
    text = format_spread(differences.tolist(), column.change or "+.4g")
    return f"{text.replace('± +', '± ')} (p {sign_flip_p(differences):.2g})"


def _extent(table: ExperimentResult) -> str:
    """Seeds, steps, what is judged, and the processors."""
    runs = [r for m in table.methods for r in longest(table.runs_of(m))]
    lengths = sorted({run.num_steps for run in runs if run.num_steps})
    if not lengths:
        return ""
    steps = " to ".join(
        f"{n:,}" for n in dict.fromkeys((lengths[0], lengths[-1]))
    )
    seeds = table.seeds
    skips = sorted({int(run.measures.get("skip_steps", 0)) for run in runs})
    skipped = " or ".join(f"{n:,}" for n in skips)
    parts = [
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}) of {steps} steps, the first "
        f"{skipped} not judged"
    ]
    starts = [
        f"from step {' or '.join(f'{n + window:,}' for n in skips)} "
        f"(window {window:,})"
        for window in (1000, 200)
        if table.has(f"judged_{window}")
    ]
    if starts:
        parts.append(f"spikes are judged {', '.join(starts)}")
    processors = sorted({run.cpu_model for run in runs})
    parts.append(f"processor: {', '.join(processors)}")
    return "; ".join(parts) + "."


def collect_results(
    output_dir: Path, results_dir: Path, targets: Sequence[str]
) -> list[Path]:
    """Add the results of targets that have been run to the committed ones.

    Raises:
        FileNotFoundError: ``output_dir`` has results of none of the targets.
    """
    collected = []
    for target in targets:
        source = output_dir / target / RESULTS
        if not source.exists():
            continue
        committed = results_dir / f"{target}.jsonl"
        if committed.exists():
            merged = merge_results(
                read_results(committed), read_results(source)
            )
            write_results(committed, merged)
        else:
            results_dir.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, committed)
        collected.append(committed)
    if not collected:
        raise FileNotFoundError(
            f"{output_dir} holds no {RESULTS} of any target: run one first"
        )
    return collected


def load_all_results(results_dir: Path) -> dict[str, TargetResult]:
    """Return the committed results by target."""
    results = {}
    for path in sorted(results_dir.glob("*.jsonl")):
        if path.name in OTHER_RESULTS:
            continue
        result = read_results(path)
        if result.target != path.stem:
            raise ValueError(f"{path} holds results of {result.target!r}")
        derived = [with_derived(e) for e in result.experiments]
        results[path.stem] = dataclasses.replace(result, experiments=derived)
    return results


class Pages:
    """What the results, by target, say on the claims, page by page."""

    def __init__(
        self,
        claims: Sequence[Claim],
        catalogue: Catalogue,
        results: Mapping[str, TargetResult],
        figures: Sequence[Figure] = (),
    ) -> None:
        self._results = results
        source = PooledResults(catalogue, results)
        self._verdicts = judge(claims, source)
        self.summary = Summary(figures, source)
        order = dict.fromkeys([*targets_of(claims), *catalogue.targets])
        self._tables = [
            (
                ERNIE_PAGE if "ernie" in joined.first.config else RUNS_PAGE,
                table,
            )
            for joined in catalogue.joined([*order])
            if (table := _table(joined, source)).all_runs
        ]

    def results_page(self) -> str:
        """Four answers, and a line per claim of the paper."""
        page = results_page(
            self.summary,
            self._verdicts,
            f"{self._effort().partition(' (')[0]}.",
            self._counts(),
        )
        return f"# Results in two minutes\n\n{_MADE}\n{page}"

    def claims_page(self) -> str:
        """Every claim with its tests, the paper's and tests of our own."""
        own = [v for v in self._verdicts if v.claim.extension]
        paper = [v for v in self._verdicts if not v.claim.extension]
        primary = [v for v in paper if v.claim.primary]
        labels = markdown_table(["Label", "Meaning"], LABELS.items(), left=2)
        rows = [
            [f"[{v.claim.claim}](#{v.claim.id})", v.number, f"**{v.label}**"]
            for v in own
        ]
        return "\n".join(
            [
                f"# The claims\n\n{_MADE}",
                f"{self._effort()} {self._counts()}\n",
                _HOW.format(labels=labels),
                "## The primary claims\n",
                *map(claim_markdown, primary),
                "## The other claims of the paper\n",
                *(claim_markdown(v) for v in paper if v not in primary),
                f"## Tests of our own\n\n{counted(own)}.\n",
                markdown_table(["Test", "Here", "Verdict"], rows, left=3),
                *map(claim_markdown, own),
            ]
        )

    def runs_page(self) -> str:
        """The tables of all models but ERNIE's, the timings."""
        return "\n".join(
            [
                f"# All runs\n\n{_MADE}",
                f"{_RUNS}ERNIE's are on [their page](ernie.md).\n",
                *self._runs(RUNS_PAGE),
                "## Timings and the plan\n",
                *self._timings(),
            ]
        )

    def ernie_page(self) -> str:
        """ERNIE's tables."""
        return "\n".join(
            [
                f"# All runs of ERNIE\n\n{_MADE}",
                f"{_RUNS}The verdicts: [The claims](claims.md).\n",
                *self._runs(ERNIE_PAGE),
            ]
        )

    def _counts(self) -> str:
        paper = [v for v in self._verdicts if not v.claim.extension]
        own = len(self._verdicts) - len(paper)
        return (
            f"Of {len(paper)} claims of the paper: {counted(paper)}. Apart "
            f"from them stand {own} tests of our own."
        )

    def as_json(self) -> str:
        """Rows and tests with the digests of their runs."""
        tables = [
            {
                "page": page,
                "title": table.title,
                "rows": {
                    method: [r.run_id for r in longest(table.runs_of(method))]
                    for method in table.methods
                },
            }
            for page, table in self._tables
        ]
        verdicts = [_verdict_json(verdict) for verdict in self._verdicts]
        report = {
            "tables": tables,
            "figures": self.summary.as_json(),
            "verdicts": verdicts,
        }
        return json.dumps(report, indent=1, ensure_ascii=False) + "\n"

    def _runs(self, page: str) -> list[str]:
        return [table_markdown(t, 3) for its, t in self._tables if its == page]

    def _timings(self) -> list[str]:
        return [
            table_markdown(experiment, 3)
            for result in self._results.values()
            for experiment in result.experiments
            if experiment.all_runs and not experiment.all_runs[0].num_steps
        ]

    def _effort(self) -> str:
        """How many runs there are, how long they took, and of which code."""
        runs = {
            run.run_id: run
            for result in self._results.values()
            for experiment in result.experiments
            for run in experiment.all_runs
            if run.num_steps
        }.values()
        hours = sum(map(_seconds, runs)) / 3600
        commits = sorted(
            {
                one
                for run in runs
                for one in (run.commit or "unknown").split(", ")
            }
        )
        paddles = sorted(
            {run.versions.get("paddlepaddle", "unknown") for run in runs}
        )
        return (
            f"{len(runs)} runs, {hours:.1f} core-hours (median time of a "
            "step, times the steps); paddlepaddle "
            f"{', '.join(paddles)}; commits {', '.join(commits)}."
        )


def _seconds(run: RunResult) -> float:
    """Time of a run's steps, without what other jobs took from them."""
    if "step_ms" not in run.measures:
        return run.timings.get("elapsed_seconds", 0.0)
    return run.measures["step_ms"] * run.num_steps / 1000


def made_files(pages: Pages, docs: Path, results_dir: Path) -> dict[Path, str]:
    """Every file that the results determine, with its content."""
    return {
        docs / PAGE: pages.results_page(),
        docs / CLAIMS_PAGE: pages.claims_page(),
        docs / RUNS_PAGE: pages.runs_page(),
        docs / ERNIE_PAGE: pages.ernie_page(),
        **{
            docs / "images" / file: svg
            for file, svg in pages.summary.svgs().items()
        },
        **readmes(pages.summary, docs.parent),
        results_dir / REPORT: pages.as_json(),
    }


def _table(joined: JoinedExperiment, source: PooledResults) -> ExperimentResult:
    """Return pooled runs; methods without any are left out."""
    return ExperimentResult(
        name=joined.first.name,
        title=joined.first.title,
        description=joined.first.description,
        paper=joined.paper,
        all_runs=[
            dataclasses.replace(run, method=name, is_clean_twin=False)
            for name, method in joined.methods.items()
            for run in source.pool.runs(method)
        ],
    )


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.claim.id,
        "where": verdict.claim.where,
        "claim": verdict.claim.claim,
        "verdict": verdict.verdict,
        "extension": verdict.claim.extension,
        "primary": verdict.claim.primary,
        "number": verdict.number,
        "p_for": verdict.p_for,
        "p_against": verdict.p_against,
        "control_is_calm": verdict.claim.control_is_calm,
        "comparisons": [c.as_json() for c in verdict.comparisons],
        "premises": [c.as_json() for c in verdict.premises],
        "controls": dict(verdict.control_keys),
    }
