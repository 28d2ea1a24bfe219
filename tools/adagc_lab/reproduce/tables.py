# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of results as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from adagc_lab.markdown import markdown_table
from adagc_lab.report.formatting import Value, format_range, format_spread
from adagc_lab.report.measures import listed, run_measures, spread
from adagc_lab.reproduce.pairs import differences_of, paired, rate_of
from adagc_lab.reproduce.pool import Method
from adagc_lab.reproduce.prediction import Prediction, predictions
from adagc_lab.reproduce.results import (
    EVENTS,
    ExperimentResult,
    TargetResult,
    longest,
)
from adagc_lab.reproduce.statistics import MAX_PAIRS, sign_flip_p
from adagc_lab.reproduce.verdicts import Verdict


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
BRIEF = (
    Column("Spike mass (nat × steps)", "spike_mass", spread(".2f")),
    Column("Mean loss (nat)", "mean_loss", spread(".4f"), "+.4f"),
    Column("Loss at the end (nat)", "end_loss", spread(".4f"), "+.4f"),
    Column("Validation loss (nat)", "validation_loss", spread(".4f"), "+.4f"),
)
"""Of the pages that compare methods: the primary measure and its price."""

_TIMES_OF_RUNS = ("clip_ms", "step_ms")
"""Not shown beside losses: other runs took part of the machine."""

RATE = "Events per 1,000 judged steps"
"""Label of the column after the counted events."""


def table_markdown(table: ExperimentResult, level: int = 3) -> str:
    """Heading, description, and the table: a line per method.

    Counts are listed seed by seed, rates have their exact 95% limits, other
    numbers are mean ± sample standard deviation, or median and range; ``Δ`` is
    the paired difference to the first method with the p of the two-sided exact
    sign-flip test.
    """
    text = f"{table.description} {_extent(table)}".strip()
    lines = methods_markdown(table, COLUMNS)
    return f"{'#' * level} {table.title}\n\n{text}\n\n{lines}"


def methods_markdown(table: ExperimentResult, columns: Sequence[Column]) -> str:
    """Return the table alone: a line per method, the columns with values."""
    shown = [*_columns(table, columns)]
    head = ["", *(label for label, _ in shown)]
    rows = zip(table.methods, *(cells for _, cells in shown), strict=True)
    return markdown_table(head, rows)


def small_moments_markdown(
    table: ExperimentResult, sides: Sequence[str]
) -> str:
    """Elements with ``sqrt(v)`` below epsilon at the end, by kind of tensor.

    Methods are named "SIDE EPSILON". A cell has a share for each side, in
    percent, the mean of all seeds.
    """
    shares: dict[tuple[str, str, str], list[float]] = {}
    for run in table.runs:
        side, _, epsilon = run.method.partition(" ")
        for kind, share in run.series.get("small_moments", {}).items():
            kind = kind.removeprefix("model.").removesuffix(".weight")
            shares.setdefault((kind, epsilon, side), []).append(share)
    kinds, values = ([*dict.fromkeys(key[i] for key in shares)] for i in (0, 1))

    def cell(kind: str, value: str) -> str:
        own = [shares.get((kind, value, side)) for side in sides]
        return " / ".join(f"{fmean(x):.0f}" if x else "–" for x in own)

    rows = [[f"`{k}`", *(cell(k, v) for v in values)] for k in kinds]
    return markdown_table(["tensors", *values], rows)


def predictions_markdown(tables: Sequence[ExperimentResult]) -> str:
    """Return a line per experiment in which the rule of who is helped spoke."""
    rows, spiking, calm = [], list[Prediction](), list[Prediction]()
    for table in tables:
        runs = [(Method.of(r.config).signature, r) for r in table.all_runs]
        if found := predictions(runs):
            kind = table.all_runs[0].config["data.kind"]
            (spiking if kind == "fixed_sequences" else calm).extend(found)
            shares = [one.replayed for one in found]
            gains = [one.gain for one in found]
            counts = [sum(g > 0 for g in gains), sum(o.is_wrong for o in found)]
            shown = [format_range(shares, ".0f"), format_range(gains, "+.4f")]
            rows.append([table.title, *shown, *map(str, [len(found), *counts])])
    head = [
        "experiment",
        "AdaGC would clip (%)",
        "GlobalGC's mean loss - AdaGC's",
    ]
    lines = markdown_table([*head, "pairs", "helped", "rule wrong"], rows)
    everything = [
        (Method.of(r.config).signature, r) for t in tables for r in t.all_runs
    ]
    followed = predictions(everything, "warmup_ema")
    return (
        f"{lines}\nThe rule is wrong in {_wrong(spiking)} that are set up to "
        f"spike, and in {_wrong(calm)} of calm recipes. Where `warmup_ema` "
        f"clips in AdaGC's place, it is wrong in {_wrong(followed)}; this test "
        "was added after the runs.\n"
    )


def _wrong(found: Sequence[Prediction]) -> str:
    """Errors of the rule, and of the guesses that AdaGC always, never helps."""
    rule = sum(one.is_wrong for one in found)
    never = sum(one.gain > 0 for one in found)
    return (
        f'{rule} of {len(found)} pairs ("AdaGC always helps": '
        f'{len(found) - never}, "never": {never})'
    )


def target_markdown(result: TargetResult) -> str:
    """All experiments of a target."""
    parts = [f"# {result.title}: `{result.target}`\n"]
    parts += [
        table_markdown(experiment, 2) for experiment in result.experiments
    ]
    return "\n".join(parts)


def verdicts_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return a line per claim: where, what it says, verdict, evidence."""
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        said = claim.claim + (f" ({claim.paper})" if claim.paper else "")
        label = f"**{verdict.label}**"
        rows.append([claim.where, said, label, "<br>".join(verdict.reasons)])
    head = ["Paper", "Claim", "Verdict", "What decided it"]
    return markdown_table(head, rows, left=4)


def _columns(
    table: ExperimentResult, columns: Sequence[Column]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the columns that have a value: label, and a cell per method."""
    methods = table.methods
    has_losses = table.has("final_loss")
    for column in columns:
        name = column.name
        if not table.has(name) or (has_losses and name in _TIMES_OF_RUNS):
            continue
        yield (
            column.title,
            [column.form(table.values(m, name)) for m in methods],
        )
        if name == EVENTS:
            yield RATE, [_rate(table, m) for m in methods]
        if column.change is not None and len(methods) > 1:
            changes = [_change(table, column, m) for m in methods]
            yield f"Δ to {methods[0]}", changes
    for label, values in table.paper.items():
        cells = [f"{values[m]:g}" if m in values else "–" for m in methods]
        yield f"Paper: {label}", cells


def _rate(table: ExperimentResult, method: str) -> str:
    runs = longest(table.runs_of(method), EVENTS)
    return rate_of(runs).text if runs else "–"


def _change(table: ExperimentResult, column: Column, method: str) -> str:
    reference = table.methods[0]
    pairs = paired(table.runs_of(method), table.runs_of(reference), column.name)
    if method == reference or not 0 < len(pairs) <= MAX_PAIRS:
        return "–"
    differences = differences_of(pairs, column.name)
    text = format_spread(differences.tolist(), column.change or "+.4g")
    p = sign_flip_p(differences).two_sided
    return f"{text.replace('± +', '± ')} (p {p:.2g})"


def _extent(table: ExperimentResult) -> str:
    """Seeds, steps, what is judged, and the processors."""
    runs = [r for m in table.methods for r in longest(table.runs_of(m))]
    lengths = sorted({run.num_steps for run in runs if run.num_steps})
    if not lengths:
        return ""
    ends = dict.fromkeys((lengths[0], lengths[-1]))
    steps = " to ".join(f"{n:,}" for n in ends)
    seeds = table.seeds
    skips = sorted({int(run.measures.get("skip_steps", 0)) for run in runs})
    parts = [
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}) of {steps} steps, the first "
        f"{_either(skips)} not judged"
    ]
    starts = [
        f"from step {_either([n + window for n in skips])} (window {window:,})"
        for window in (1000, 200)
        if table.has(f"judged_{window}")
    ]
    if starts:
        parts.append(f"spikes are judged {', '.join(starts)}")
    processors = sorted({run.cpu_model for run in runs})
    parts.append(f"processor: {', '.join(processors)}")
    return "; ".join(parts) + "."


def _either(steps: Sequence[int]) -> str:
    return " or ".join(f"{n:,}" for n in steps)
