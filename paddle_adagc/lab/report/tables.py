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
"""The comparison table of an experiment, as Markdown and as HTML."""

from __future__ import annotations

import dataclasses
import html
import itertools

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.measures import RunMeasures, measure_experiment
from paddle_adagc.lab.report.rows import row_specs


@dataclasses.dataclass(frozen=True)
class Row:
    """One measure for every method."""

    group: str
    label: str
    cells: dict[str, str]
    """Formatted value by method; several seeds: a list, or mean ± spread."""

    meaning: str
    """What the measure is and how it is computed."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Measures as rows, methods as columns."""

    methods: list[str]
    rows: list[Row]
    note: str
    """How several seeds share a cell."""

    def to_markdown(self, legend: bool = True) -> str:
        """Render a pipe table and, below it, what every row means."""
        lines = [
            f"| | {' | '.join(self.methods)} |",
            f"|---|{'---:|' * len(self.methods)}",
        ]
        for group, rows in itertools.groupby(self.rows, lambda r: r.group):
            lines.append(f"| **{group}** |{' |' * len(self.methods)}")
            for row in rows:
                cells = " | ".join(row.cells[m] for m in self.methods)
                lines.append(f"| {row.label} | {cells} |")
        if legend:
            lines += ["", self.note, ""]
            lines += [
                f"- **{label}**: {meaning}" for label, meaning in self.legend()
            ]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Render a ``<table>`` without styles."""
        head = "".join(
            f'<th scope="col">{html.escape(m)}</th>' for m in self.methods
        )
        parts = [f"<table><thead><tr><td></td>{head}</tr></thead>"]
        for group, rows in itertools.groupby(self.rows, lambda r: r.group):
            span = len(self.methods) + 1
            parts.append(
                f'<tbody><tr class="group"><th colspan="{span}" '
                f'scope="rowgroup">{html.escape(group)}</th></tr>'
            )
            for row in rows:
                cells = "".join(
                    f"<td>{html.escape(row.cells[m])}</td>"
                    for m in self.methods
                )
                label = html.escape(row.label)
                parts.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
            parts.append("</tbody>")
        return "\n".join([*parts, "</table>"])

    def legend(self) -> list[tuple[str, str]]:
        """Return every label once, with its meaning, in the rows' order."""
        return list({row.label: row.meaning for row in self.rows}.items())


def comparison_table(
    experiment: Experiment,
    measures: dict[str, list[RunMeasures]] | None = None,
) -> Table:
    """Arrange the numbers of ``experiment`` as a table.

    Args:
        experiment: The runs.
        measures: What ``measure_experiment(experiment)`` returned, if it has
            been called before.
    """
    if measures is None:
        measures = measure_experiment(experiment)
    rows = []
    for spec in row_specs(experiment):
        cells = {
            method: spec.render([spec.value(run) for run in runs])
            for method, runs in measures.items()
        }
        rows.append(Row(spec.group, spec.label, cells, spec.meaning))
    num_seeds = len(experiment.seeds)
    note = (
        f"{num_seeds} seeds: counts are listed seed by seed, other numbers are "
        "mean ± sample standard deviation."
        if num_seeds > 1
        else "One seed."
    )
    return Table(list(measures), rows, note)
