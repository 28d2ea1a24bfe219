# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables, verdicts and the docs' pages as Markdown, from the results alone."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2
import numpy as np

from adagc_lab.committed import as_json
from adagc_lab.markdown import markdown_table
from adagc_lab.report.drawings import (
    Chart,
    Line,
    charts_svg,
    method_colors,
)
from adagc_lab.reproduce.claims import Rules, targets_of
from adagc_lab.reproduce.pairs import differences_of, paired
from adagc_lab.reproduce.pool import (
    Catalogue,
    JoinedExperiment,
    PooledResults,
)
from adagc_lab.reproduce.results import (
    RESULTS,
    ExperimentResult,
    RunResult,
    TargetResult,
    clean_runs,
    longest,
    merge_results,
    read_results,
    with_derived,
    write_results,
)
from adagc_lab.reproduce.rows import (
    COLUMNS as ROW_COLUMNS,
)
from adagc_lab.reproduce.rows import Row, answers, make_rows
from adagc_lab.reproduce.statistics import mean_limits
from adagc_lab.reproduce.tables import (
    BRIEF,
    methods_markdown,
    predictions_markdown,
    small_moments_markdown,
    table_markdown,
)
from adagc_lab.reproduce.verdicts import LABELS, Verdict, counted, judge

PAGE = "results.md"
CLAIMS_PAGE = "results/claims.md"
ROWS_PAGE = "results/comparisons.md"
RUNS_PAGE, ERNIE_PAGE = "results/runs.md", "results/ernie.md"
EPSILON_PAGE, METHODS_PAGE = "results/epsilon.md", "results/methods.md"
REPORT = "report.json"
"""Which runs stand in which row and behind which test, in the results' folder;
`tools/reproduce.py verify` recomputes every number from it."""

OTHER_RESULTS = (
    *("creep.jsonl", "gpu.jsonl", "mutation.jsonl"),
    "price.jsonl",
)
"""Files beside those of targets, of other commands."""

START, END = "<!-- results -->", "<!-- end -->"
"""Marks of the block in the READMEs that the results determine."""

_BIN = 10
"""Steps of which the READMEs' picture shows the largest loss."""

_READMES = {"README.md": "readme.md.j2", "README_cn.md": "readme_cn.md.j2"}


def collect_results(
    output_dir: Path, results_dir: Path, targets: Sequence[str]
) -> list[Path]:
    """Add the results of targets that have been run to the committed ones."""
    collected = []
    for target in targets:
        source = output_dir / target / RESULTS
        if not source.exists():
            continue
        committed = results_dir / f"{target}.jsonl"
        result = read_results(source)
        if committed.exists():
            old = read_results(committed)
            _check_same_steps(old, result)
            result = merge_results(old, result)
        collected.append(write_results(committed, result))
    if not collected:
        raise FileNotFoundError(
            f"{output_dir} holds no {RESULTS} of any target: run one first"
        )
    return collected


def _check_same_steps(old: TargetResult, new: TargetResult) -> None:
    """Refuse runs whose first steps are judged otherwise."""
    for experiment in new.experiments:
        known = old.experiment(experiment.name)
        if known and known.skip_steps != experiment.skip_steps:
            raise ValueError(
                f"{new.target}, {experiment.name}: the first "
                f"{experiment.skip_steps} steps are not judged, of the "
                f"committed runs the first {known.skip_steps}: collect runs of "
                "the same length (without --steps)"
            )


def load_all_results(results_dir: Path) -> dict[str, TargetResult]:
    """Return the committed results by target."""
    results = {}
    for path in sorted(results_dir.glob("*.jsonl")):
        if path.name in OTHER_RESULTS:
            continue
        result = read_results(path)
        if result.target != path.stem:
            raise ValueError(f"{path} holds results of {result.target!r}")
        results[path.stem] = result
    clean = clean_runs(results.values())
    return {
        target: dataclasses.replace(
            result,
            experiments=[with_derived(e, clean) for e in result.experiments],
        )
        for target, result in results.items()
    }


def made_files(
    rules: Rules,
    catalogue: Catalogue,
    results: Mapping[str, TargetResult],
    docs: Path,
    results_dir: Path,
) -> dict[Path, str]:
    """Every file that the results, by target, determine, with its content."""
    source = PooledResults(catalogue, results)
    verdicts = judge(rules.claims, source)
    order = dict.fromkeys([*targets_of(rules.claims), *catalogue.targets])
    experiments = catalogue.joined([*order])
    rows = make_rows(experiments, source, rules.labels)
    tables = [
        (ERNIE_PAGE if "ernie" in joined.first.config else RUNS_PAGE, table)
        for joined in experiments
        if (table := _table(joined, source)).all_runs
    ]
    report = {
        "tables": [
            {
                "page": page,
                "title": table.title,
                "rows": {
                    method: [r.run_id for r in longest(table.runs_of(method))]
                    for method in table.methods
                },
            }
            for page, table in tables
        ],
        "rows": [row.as_json() for row in rows],
        "verdicts": [verdict.as_json() for verdict in verdicts],
    }
    timings = [
        table_markdown(experiment)
        for result in results.values()
        for experiment in result.experiments
        if experiment.all_runs and not experiment.all_runs[0].num_steps
    ]
    shown = _answers(verdicts) | answers(rows)
    shown["effort"] = _effort(results)
    shown["rows"] = functools.partial(rows_markdown, rows)
    shown["own_seeds"] = functools.partial(_of_own_seeds, source)
    shown["core_hours"] = functools.partial(_core_hours, results)
    shown["calm_price"] = functools.partial(_calm_price, source)
    shown["masses"] = functools.partial(_spike_masses, source)
    shown["damage"] = functools.partial(_damage, source)
    shown["small_moments"] = small_moments_markdown
    shown["methods"] = functools.partial(methods_markdown, columns=BRIEF)
    shown["predictions"] = predictions_markdown([t for _, t in tables])
    files = {
        docs / PAGE: _render("results.md.j2", **shown),
        docs / CLAIMS_PAGE: _render("claims.md.j2", **shown),
        docs / ROWS_PAGE: _render("comparisons.md.j2", **shown),
        docs / EPSILON_PAGE: _render("epsilon.md.j2", **shown),
        docs / METHODS_PAGE: _render("methods.md.j2", **shown),
        results_dir / REPORT: as_json(report, indent=1),
    }
    for name in (RUNS_PAGE, ERNIE_PAGE):
        files[docs / name] = _render(
            "runs.md.j2",
            is_ernie=name == ERNIE_PAGE,
            tables=[table_markdown(t) for page, t in tables if page == name],
            timings=timings,
        )
    for file, svg in _loss_curves(rules, results).items():
        files[docs / "images" / file] = svg
    return files | _readmes(docs.parent, shown)


_ROW_HEADS = {
    "spike_mass": "Spike mass",
    "spike_events": "Spike events",
    "end_loss": "Loss at the end",
    "mean_loss": "Mean loss",
    "excess_area": "Damage over its own clean run",
    "excess_area_global": "Damage over GlobalGC's clean run",
    "validation_loss": "Validation loss",
}


def rows_markdown(
    rows: Sequence[Row],
    situation: str,
    *,
    is_all: bool = False,
    heads: Sequence[str] = ("Recipe", "`lambda_abs` → AdaGC", "Seeds", "Steps"),
    names: Mapping[str, str] | None = None,
) -> str:
    """Table of a situation: the named rows, or all."""
    names = names or _ROW_HEADS
    return markdown_table(
        [*heads, *(names[m] for m in ROW_COLUMNS[situation])],
        [
            row.line()
            for row in rows
            if row.situation == situation and (is_all or row.is_named)
        ],
        left=2,
    ).rstrip()


def _answers(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What the pages of claims show: the paper's, and tests of our own."""
    own = [v for v in verdicts if v.claim.extension]
    starts = ("gamma-start", "ema-")
    paper = [v for v in verdicts if not v.claim.extension]
    return {
        "counts": f"Of {len(paper)} claims of the paper: {counted(paper)}. "
        f"{len(own)} more tests are ours.",
        "flips": [_link(v) for v in verdicts if v.flips],
        "own_counts": counted(own),
        "starts": counted([v for v in own if v.claim.id.startswith(starts)]),
        "label_meanings": LABELS.items(),
        "paper": paper,
        "own": own,
        "paper_verdicts": [
            [f"**{label}**", meaning, ", ".join(map(_link, claims))]
            for label, meaning in LABELS.items()
            if (claims := [v for v in paper if v.label == label])
        ],
        "paper_rows": _rows(paper),
        "primary_rows": _rows(
            [v for v in paper if v.claim.primary], "results/claims.md"
        ),
        "own_rows": _rows(own),
        "tests": lambda where: [
            row[:3]
            for row in _rows(
                [v for v in own if v.claim.where == where], "claims.md"
            )
        ],
    }


def _link(verdict: Verdict) -> str:
    return f"[{verdict.claim.id}](results/claims.md#{verdict.claim.id})"


def _rows(verdicts: Iterable[Verdict], page: str = "") -> list[list[str]]:
    """Claim, verdict, number, and the paper's."""
    return [
        [
            f"[{v.claim.claim}]({page}#{v.claim.id})",
            f"**{v.label}**",
            v.number or "–",
            v.claim.paper.rstrip("."),
        ]
        for v in verdicts
    ]


def _loss_curves(
    rules: Rules, results: Mapping[str, TargetResult]
) -> dict[str, str]:
    """Return the READMEs' picture by its file, if its runs are there."""
    curves = rules.curves
    if curves is None or curves.target not in results:
        return {}
    found = results[curves.target].experiment(curves.experiment)
    lines = [
        Line(
            label=method,
            color=color,
            values=_largest(run.losses),
        )
        for method, color in method_colors(curves.methods).items()
        for run in (found.runs_of(method) if found else ())
    ]
    if len({line.label for line in lines}) < len(curves.methods):
        return {}
    label = "training loss (nat)"
    chart = Chart(label=label, lines=lines, every=_BIN, log=True)
    return {curves.file: charts_svg(curves.title, [[chart]], 184)}


def _largest(losses: np.ndarray) -> np.ndarray:
    """Return the largest loss of each bin of steps."""
    return np.maximum.reduceat(losses, np.arange(0, len(losses), _BIN))


def _readmes(root: Path, shown: Mapping[str, Any]) -> dict[Path, str]:
    """Return the READMEs that have the marks, their blocks filled."""
    found = {}
    for name, template in _READMES.items():
        path = root / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if START in text:
            block = _render(template, **shown)
            before, _, rest = text.partition(START)
            after = rest.partition(END)[2]
            found[path] = f"{before}{START}\n{block}{END}{after}"
    return found


def _effort(results: Mapping[str, TargetResult]) -> str:
    """How many runs there are, how long they took, and of which code."""
    lines = [
        run
        for result in results.values()
        for experiment in result.experiments
        for run in experiment.all_runs
        if run.num_steps
    ]
    runs = {run.run_id: run for run in lines}.values()
    hours, copied = (sum(map(_seconds, r)) / 3600 for r in (runs, lines))
    codes = [(run.commit or "unknown").split(", ") for run in runs]
    commits = sorted({*itertools.chain(*codes)})
    paddles = {run.versions.get("paddlepaddle", "unknown") for run in runs}
    return (
        f"{len(runs)} runs, {hours:.1f} core-hours (median time of a step, "
        f"times the steps; {len(lines) - len(runs)} more lines of "
        f"{copied - hours:.1f} hours are copies of a run that another "
        "experiment's lines hold, and count once); paddlepaddle "
        f"{', '.join(sorted(paddles))}; commits {', '.join(commits)}."
    )


def _core_hours(results: Mapping[str, TargetResult], target: str) -> str:
    """``"160 runs, 4.8 core-hours"`` of a target; ``"no run"``."""
    runs = {
        run.run_id: run
        for result in results.values()
        if result.target == target
        for experiment in result.experiments
        for run in experiment.all_runs
    }
    hours = sum(map(_seconds, runs.values())) / 3600
    return f"{len(runs)} runs, {hours:.1f} core-hours" if runs else "no run"


def _seconds(run: RunResult) -> float:
    """Time of a run's steps, without what other jobs took from them."""
    if "step_ms" not in run.measures:
        return run.timings.get("elapsed_seconds", 0.0)
    return run.measures["step_ms"] * run.num_steps / 1000


def _render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "page"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["wrap"] = _wrap
    page = environment.get_template(template)
    return page.render(table=markdown_table, **values)


def _wrap(text: str, start: str = "") -> str:
    """Return a paragraph, or an entry of a list, in lines of 118 characters."""
    wrapper = textwrap.TextWrapper(
        *(118, start, " " * len(start)),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.fill(" ".join(text.split())) + "\n"


def _of_own_seeds(
    source: PooledResults, target: str, experiment: str
) -> ExperimentResult:
    """Return an experiment's runs on the seeds of its grid."""
    seeds = source.seeds(target, experiment)
    return ExperimentResult(
        name=experiment,
        title=experiment,
        all_runs=[
            dataclasses.replace(run, method=name)
            for name in source.methods(target, experiment)
            for run in source.runs(target, experiment, name, seeds)
        ],
    )


def _spike_masses(source: PooledResults, method: str) -> str:
    """A method's mean beside the two clips' where runs are set up to spike."""
    parts = []
    for model in ("Llama", "ERNIE", "Mixtral"):
        table = _of_own_seeds(
            source, "extension-compared-methods", f"low-noise-{model.lower()}"
        )
        names = method, "GlobalGC", "AdaGC"
        if {*names} <= {*table.methods}:
            own, global_gc, adagc = (
                fmean(r.measures["spike_mass"] for r in table.runs_of(name))
                for name in names
            )
            clips = f"GlobalGC {global_gc:.2g}, AdaGC {adagc:.2g}"
            parts.append(f"{own:.2g} on {model} ({clips})")
    return "; ".join(parts)


def _calm_price(source: PooledResults, method: str) -> str:
    """A method's validation loss minus GlobalGC's on Mixtral's calm recipe.

    ``"+0.064 (+0.055 to +0.073)"``: mean and 95% limits.
    """
    table = _of_own_seeds(source, "extension-compared-methods", "calm-mixtral")
    both = table.runs_of(method), table.runs_of("GlobalGC")
    pairs = paired(*both, "validation_loss")
    if not pairs:
        return "not run"
    limits = mean_limits(differences_of(pairs, "validation_loss"))
    mean, low, high = (f"{x:+.3f}".replace("-0.000", "0.000") for x in limits)
    return f"{mean} ({low} to {high})"


def _damage(source: PooledResults, method: str) -> str:
    """A method's damage minus GlobalGC's under faults, and AdaGC's.

    On Mixtral, over each clip's own clean run.
    """
    table = _of_own_seeds(source, "extension-robust", "faults")
    if not {method, "GlobalGC", "AdaGC"} <= {*table.methods}:
        return "not run"

    def beside(name: str) -> str:
        both = table.runs_of(name), table.runs_of("GlobalGC")
        pairs = paired(*both, "excess_area")
        return f"{differences_of(pairs, 'excess_area').mean():+.1f}"

    return f"{beside(method)} (AdaGC {beside('AdaGC')})"


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
            for run in source.runs_of(method)
        ],
    )
