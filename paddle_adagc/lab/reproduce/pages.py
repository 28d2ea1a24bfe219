# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The docs' pages of results, from the results alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.lab.reproduce.catalogue import Catalogue, Setting
from paddle_adagc.lab.reproduce.claims import Claim, targets_of
from paddle_adagc.lab.reproduce.markdown import (
    Table,
    table_markdown,
    verdicts_markdown,
)
from paddle_adagc.lab.reproduce.merging import merge_results
from paddle_adagc.lab.reproduce.pool import Pool, longest
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    TargetResult,
    read_results,
    write_results,
)
from paddle_adagc.lab.reproduce.verdicts import (
    PooledResults,
    Verdict,
    counted,
    judge,
)
from paddle_adagc.lab.reproduce.writing import RESULTS

PAGE, ERNIE_PAGE = "results.md", "results-ernie.md"
REPORT = "report.json"
"""Which runs stand in which row and behind which test, in the results' folder;
`tools/reproduce.py verify` recomputes every number from it."""

OTHER_RESULTS = (
    "gpu.jsonl",
    "mutation.jsonl",
    "soak.jsonl",
    "versions.jsonl",
)
"""Files beside those of targets, of other commands."""

_MADE = "<!-- made by `tools/reproduce.py report`: do not edit -->\n"
_HOW = """\
Each claim has a rule in `configs/claims.yaml`. Rules, margins and the six
primary claims were fixed after the runs that are marked "recorded before" and
before all others. A verdict takes every run that fits the rule, whichever
experiment ordered it.

| Label | Meaning |
|---|---|
| reproduced | every comparison is significant (p at most 0.05) |
| contradicted | the opposite is significant, or an event breaks a zero |
| no difference | the difference is smaller than a margin stated beforehand |
| undecided | none of these yet, with what would decide |
| not testable here | the reason is given |

The runs are proxies of 0.1 to 1.2 million parameters on CPU cores: a verdict
is about them, not about the paper's models. Seeds are paired: the same initial
weights, batches and faults for all methods, on the same type of processor. A
verdict takes at least 8 paired seeds. Values are compared by the exact
sign-flip test; spikes as events per 1,000 judged steps, by the larger p of the
exact conditional binomial test and the sign-flip test of the seeds' rates. The
six primary claims share an error of 0.05 (Holm); the others are descriptive.
"""

_RUNS = """\
## Runs

Counts are listed seed by seed (–: no such run), rates have their exact 95%
limits, other numbers are mean ± sample standard deviation, or median and range
of more than 5 seeds; "(3 of 8)": seeds that have a value. Δ is the mean of the
paired differences, p that of the two-sided exact sign-flip test.
"""


def collect_results(
    output_dir: Path, results_dir: Path, targets: Sequence[str]
) -> list[Path]:
    """Add the results of targets that have been run to the committed ones.

    Args:
        output_dir: What ``--output`` named.
        results_dir: Where committed results are; their runs stay.
        targets: Names to look for.

    Raises:
        FileNotFoundError: None of the targets has results.
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


def result_files(results_dir: Path) -> list[Path]:
    """Return the files of targets."""
    return sorted(
        path
        for path in results_dir.glob("*.jsonl")
        if path.name not in OTHER_RESULTS
    )


def load_all_results(results_dir: Path) -> dict[str, TargetResult]:
    """Return the committed results by target.

    Raises:
        ValueError: A file is not valid, or named after another target.
    """
    results = {}
    for path in result_files(results_dir):
        result = read_results(path)
        if result.target != path.stem:
            raise ValueError(f"{path} holds results of {result.target!r}")
        results[result.target] = result
    return results


class Pages:
    """What the results say, page by page.

    Args:
        claims: All claims.
        catalogue: The grids that they are about.
        results: By target.
    """

    def __init__(
        self,
        claims: Sequence[Claim],
        catalogue: Catalogue,
        results: Mapping[str, TargetResult],
    ) -> None:
        self._results = results
        self._verdicts = judge(claims, PooledResults(catalogue, results))
        pool = Pool(results.values())
        order = [t for t in targets_of(claims) if t in catalogue.targets]
        order += [t for t in catalogue.targets if t not in order]
        self._tables = {
            setting: table
            for setting in catalogue.settings(order)
            if (table := _table(setting, pool)).runs
        }

    def results_page(self) -> str:
        """All claims, the tables of all models but ERNIE's, the timings."""
        own = [v for v in self._verdicts if v.claim.extension]
        paper = [v for v in self._verdicts if not v.claim.extension]
        primary = [v for v in paper if v.claim.primary]
        others = [v for v in paper if not v.claim.primary]
        parts = [
            f"# Results\n\n{_MADE}",
            f"{self._effort()} Of {len(paper)} claims of the paper: "
            f"{counted(paper)}.\n",
            _HOW,
            "## The primary claims\n",
            verdicts_markdown(primary),
            "## The other claims of the paper\n",
            verdicts_markdown(others),
        ]
        if own:
            parts += [
                f"## Not in the paper\n\n{counted(own)}.\n",
                verdicts_markdown(own, where="About"),
            ]
        parts += [_RUNS, f"ERNIE's are on [their page]({ERNIE_PAGE}).\n"]
        parts += self._runs(is_ernie=False)
        parts += ["## Timings and the plan\n", *self._timings()]
        return "\n".join(parts)

    def ernie_page(self) -> str:
        """ERNIE's claims and tables."""
        verdicts = [v for v in self._verdicts if v.claim.ernie]
        return "\n".join(
            [
                f"# ERNIE\n\n{_MADE}",
                f"How a verdict is made: [Results]({PAGE}).\n",
                verdicts_markdown(verdicts),
                _RUNS,
                *self._runs(is_ernie=True),
            ]
        )

    def as_json(self) -> str:
        """Rows and tests with the digests of their runs."""
        tables = [
            {
                "page": ERNIE_PAGE if _is_ernie(setting) else PAGE,
                "title": table.title,
                "rows": {
                    method: [run.run_id for run in longest(runs)]
                    for method, runs in table.runs.items()
                },
            }
            for setting, table in self._tables.items()
        ]
        verdicts = [_verdict_json(verdict) for verdict in self._verdicts]
        report = {"tables": tables, "verdicts": verdicts}
        return json.dumps(report, indent=1, ensure_ascii=False) + "\n"

    def _runs(self, is_ernie: bool) -> list[str]:
        return [
            table_markdown(table, 3)
            for setting, table in self._tables.items()
            if _is_ernie(setting) == is_ernie
        ]

    def _timings(self) -> list[str]:
        return [
            table_markdown(Table.of(experiment), 3)
            for result in self._results.values()
            for experiment in result.experiments
            if experiment.cells and not experiment.cells[0].num_steps
        ]

    def _effort(self) -> str:
        """How many runs there are, how long they took, and of which code."""
        cells = {
            cell.run_id: cell
            for result in self._results.values()
            for experiment in result.experiments
            for cell in experiment.cells
            if cell.num_steps
        }.values()
        hours = sum(map(_seconds, cells)) / 3600
        commits = sorted(
            {one for c in cells for one in (c.commit or "unknown").split(", ")}
        )
        paddles = sorted(
            {c.versions.get("paddlepaddle", "unknown") for c in cells}
        )
        return (
            f"{len(cells)} runs, {hours:.1f} core-hours (median time of a "
            "step, times the steps); paddlepaddle "
            f"{', '.join(paddles)}; commits {', '.join(commits)}."
        )


def _seconds(cell: CellResult) -> float:
    """Time of a run's steps, without what other jobs took from them."""
    if "step_ms" not in cell.measures:
        return cell.timings.get("elapsed_seconds", 0.0)
    return cell.measures["step_ms"] * cell.num_steps / 1000


def made_files(pages: Pages, docs: Path, results_dir: Path) -> dict[Path, str]:
    """Every file that the results determine, with its content."""
    return {
        docs / PAGE: pages.results_page(),
        docs / ERNIE_PAGE: pages.ernie_page(),
        results_dir / REPORT: pages.as_json(),
    }


def _table(setting: Setting, pool: Pool) -> Table:
    """Return the pooled runs of a setting; methods without any are left out."""
    runs = {m: pool.runs(arm) for m, arm in setting.arms.items()}
    return Table(
        setting.title,
        setting.description,
        {method: cells for method, cells in runs.items() if cells},
        setting.skip_steps,
        setting.paper,
    )


def _is_ernie(setting: Setting) -> bool:
    return "ernie" in setting.model


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": verdict.claim.id,
        "where": verdict.claim.where,
        "claim": verdict.claim.claim,
        "verdict": verdict.verdict,
        "primary": verdict.claim.primary,
        "p_for": verdict.p_for,
        "p_against": verdict.p_against,
        "comparisons": [c.as_json() for c in verdict.comparisons],
        "controls": dict(verdict.control_keys),
    }
