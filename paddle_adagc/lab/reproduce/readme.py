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
"""The reproduction section of docs/results.md, from committed results."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddle_adagc.lab.reproduce.claims import Claim
from paddle_adagc.lab.reproduce.markdown import (
    counted,
    target_markdown,
    verdicts_markdown,
)
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    TargetResult,
    read_results,
)
from paddle_adagc.lab.reproduce.verdicts import Verdict, judge
from paddle_adagc.lab.reproduce.writing import RESULTS

BEGIN = "<!-- reproduction: made by `tools/reproduce.py report` -->"
END = "<!-- end of the reproduction -->"
HEADING = "# Results\n"

_HOW = """\
Every claim of the paper's abstract and experiments, what was run for it here,
and a verdict that follows from the numbers by the rule beside the claim in
`configs/claims.yaml`: *reproduced*, *not reproduced*, or
*not testable here*. The runs are proxies of 0.1 to 0.5 million parameters on
CPU cores: a verdict is about them, not about the paper's models. Seeds are
paired: the same initial weights, batches and faults for all methods. Counts are
listed seed by seed, other numbers are mean ± sample standard deviation over the
seeds; Δ is the paired difference to the first method, with the p of the
two-sided exact sign-flip test (claims of a direction use the one-sided one).
"""


def collect_results(
    output_dir: Path, results_dir: Path, targets: Sequence[str]
) -> list[Path]:
    """Copy the result files of targets that have been run.

    Args:
        output_dir: What ``--output`` named.
        results_dir: Where committed results are.
        targets: Names to look for.

    Raises:
        FileNotFoundError: None of the targets has results.
    """
    copied = []
    for target in targets:
        source = output_dir / target / RESULTS
        if source.exists():
            results_dir.mkdir(parents=True, exist_ok=True)
            copied.append(results_dir / f"{target}.jsonl")
            shutil.copyfile(source, copied[-1])
    if not copied:
        raise FileNotFoundError(
            f"{output_dir} holds no {RESULTS} of any target: run one first"
        )
    return copied


def load_all_results(results_dir: Path) -> dict[str, TargetResult]:
    """The committed results by target.

    Raises:
        ValueError: A file is not valid, or named after another target.
    """
    results = {}
    for path in sorted(results_dir.glob("*.jsonl")):
        result = read_results(path)
        if result.target != path.stem:
            raise ValueError(f"{path} holds results of {result.target!r}")
        results[result.target] = result
    return results


def reproduction_markdown(
    claims: Sequence[Claim], results: Mapping[str, TargetResult]
) -> str:
    """The whole section: claims with verdicts, then the tables by target."""
    verdicts = [
        judge(claim, results) for claim in claims if not claim.extension
    ]
    own = [judge(claim, results) for claim in claims if claim.extension]
    order = [*dict.fromkeys(c.target for c in claims if c.target in results)]
    parts = [
        "### Reproduction of the paper\n",
        _HOW,
        f"{_effort(results)} Of {len(verdicts)} claims: {counted(verdicts)}.\n",
        verdicts_markdown(verdicts),
        *_own_markdown(own),
        *(target_markdown(results[target or ""]) for target in order),
    ]
    return "\n".join(parts)


def _own_markdown(verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    return [
        f"What is not in the paper, by the same rules: {counted(verdicts)}.\n",
        verdicts_markdown(verdicts, where="About"),
    ]


def with_section(page: str, section: str) -> str:
    """The page's text with the section between its markers.

    Without markers they come right below the heading of the results.

    Raises:
        ValueError: It has neither markers nor that heading.
    """
    block = f"{BEGIN}\n{section}{END}\n"
    start, end = page.find(BEGIN), page.find(END)
    if start >= 0 and end > start:
        rest = page[end + len(END) :].removeprefix("\n")
        return page[:start] + block + rest
    if HEADING not in page:
        raise ValueError(f"the page has no heading {HEADING.strip()!r}")
    before, after = page.split(HEADING, 1)
    return f"{before}{HEADING}\n{block}{after}"


def expected_page(page: str, claims: Sequence[Claim], results_dir: Path) -> str:
    """The page as the committed results have it; as it is without any.

    Raises:
        ValueError: A section without results, or a bad result file.
    """
    results = load_all_results(results_dir)
    if results:
        return with_section(page, reproduction_markdown(claims, results))
    if BEGIN in page:
        raise ValueError(
            f"the page has a reproduction section, {results_dir} no results"
        )
    return page


def _effort(results: Mapping[str, TargetResult]) -> str:
    """How many runs there are, how long they took, and of which code."""
    cells: dict[str, CellResult] = {
        cell.key: cell
        for result in results.values()
        for experiment in result.experiments
        for cell in experiment.cells
        if "steps" in cell.measures
    }
    seconds = [
        cell.timings.get("elapsed_seconds", 0.0) for cell in cells.values()
    ]
    commits = sorted({cell.commit or "unknown" for cell in cells.values()})
    paddles = sorted(
        {
            cell.versions.get("paddlepaddle", "unknown")
            for cell in cells.values()
        }
    )
    return (
        f"{len(cells)} runs, {sum(seconds) / 3600:.1f} core-hours; "
        f"paddlepaddle {', '.join(paddles)}; commits {', '.join(commits)}."
    )
