# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The creep under AdaGC: what it is, and what ends it.

The Llama proxy in low noise: 4,000 steps under GlobalGC, AdaGC and AdaGC with
the preset "release", and from AdaGC's step 3,000 on with half the learning
rate, with beta2 0.95 and under GlobalGC. Mixtral's proxy over 8,000 steps under
AdaGC, in which the creep passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adagc_lab.markdown import markdown_table
from adagc_lab.record.files import RunRecord
from adagc_lab.report.drawings import Chart, Line, charts_svg, method_colors
from adagc_lab.studies import Records, Study, StudyRun, rounded

STEPS, CHANGE, BIN = 4000, 3000, 50
DRAWN = 200
"""Step from which courses are drawn: the descent would hide the rest."""

_BASE = (
    f"train.max_steps={STEPS}",
    "train.save_every=500",
    "train.keep_checkpoints=8",
)
COURSES = {
    "GlobalGC": ["clip.name=global_norm"],
    "AdaGC": [],
    "release": ["clip.preset=release"],
}
CHANGES = {
    "half the learning rate": ["schedule.learning_rate=0.0015"],
    "beta2 0.95": ["optimizer.beta2=0.95"],
    "GlobalGC": ["clip.name=global_norm"],
}
"""What changes at step CHANGE of AdaGC's run."""

LONG, LONG_STEPS = "Mixtral, AdaGC", 8000
LONG_CHANGES = {
    "the same, gamma frozen": ["clip.beta=0.9999999"],
    "the same, lambda_rel 1.2": ["clip.lambda_rel=1.2"],
}
"""What changes at step CHANGE of the long run: how fast gamma may rise."""

LABELS = {
    "loss": "loss (nat)",
    "norm": "global gradient norm, before the clip",
    "h": "median h",
    "second_moment": "√Σv, Adam's second moment",
    "update": "norm of the update",
}


def course(run: RunRecord, study_run: StudyRun) -> dict[str, Any]:
    """Medians of BIN steps each; of the loss also means and maxima."""
    norm = np.sqrt(np.square(run.tensors["norm"].astype(float)).sum(1))
    series = {
        "loss": run.loss,
        "norm": norm,
        "h": np.median(run.h, axis=1),
        "second_moment": run.metrics["second_moment_root"],
        "update": run.metrics["update_norm"],
    }
    if study_run.name in (LONG, *LONG_CHANGES):
        gamma = run.tensors["gamma"].astype(float)
        series["gamma"] = np.sqrt(np.square(gamma).sum(1))
    start = study_run.first_step
    bins = {k: v[start:].reshape(-1, BIN) for k, v in series.items()}
    values = {k: rounded(np.median(v, axis=1)) for k, v in bins.items()}
    values["largest_loss"] = rounded(bins["loss"].max(axis=1))
    values["mean_loss"] = rounded(bins["loss"].mean(axis=1))
    return values


def tail(record: Mapping[str, Any], since: int) -> dict[str, Any]:
    """Return a record from bin ``since`` on."""
    rest = {k: v[since:] for k, v in record.items() if isinstance(v, list)}
    return {**record, **rest, "first_step": record["first_step"] + since * BIN}


def _of(records: Records) -> tuple[dict[str, Any], dict[str, Any]]:
    """Courses from the start, and those after the change, by name."""
    own = [r for r in records if r["run"] not in (LONG, *LONG_CHANGES)]
    courses = {r["run"]: r for r in own if not r["first_step"]}
    forks = {r["run"]: r for r in own if r["first_step"]}
    unchanged = tail(courses["AdaGC"], CHANGE // BIN)
    return courses, {"AdaGC, unchanged": unchanged, **forks}


def figures(records: Records) -> dict[str, str]:
    """Draw both pictures."""
    courses, forks = _of(records)
    return {
        "creep-course.svg": _figure(
            "One seed of the Llama proxy in low noise",
            {name: tail(r, DRAWN // BIN) for name, r in courses.items()},
            LABELS,
            DRAWN,
        ),
        "creep-causes.svg": _figure(
            f"What changes at step {CHANGE:,} of AdaGC's run",
            forks,
            ["loss", "norm", "second_moment", "update"],
            CHANGE,
        ),
    }


def _figure(title: str, records: dict[str, Any], names: Any, start: int) -> str:
    """Panels of these numbers, a line per run."""
    colors = method_colors(records)
    rows = [
        [
            Chart(
                label=LABELS[name],
                lines=[
                    Line(label=run, color=colors[run], values=np.array(r[name]))
                    for run, r in records.items()
                ],
                start=start + BIN // 2,
                every=BIN,
                log=True,
            )
        ]
        for name in names
    ]
    return charts_svg(title, rows)


def tables(records: Records) -> dict[str, str]:
    """AdaGC's course and how the others end; how the changed runs end."""
    courses, forks = _of(records)
    head = ["steps", "under", *(text for text in LABELS.values())]
    rows = [
        _row(courses["AdaGC"], end, "AdaGC")
        for end in range(1000, STEPS + 1, 1000)
    ]
    rows += [
        _row(record, STEPS, name)
        for name, record in courses.items()
        if name != "AdaGC"
    ]
    ends = [
        [
            name,
            f"{max(record['largest_loss']):.3g}",
            *_row(record, STEPS, name)[2:],
        ]
        for name, record in forks.items()
    ]
    found = {
        "course": markdown_table(head, rows, left=2),
        "causes": markdown_table(["", "largest loss", *LABELS.values()], ends),
    }
    lines = [
        [*_row(record, end, record["run"]), _last(record, "gamma", end)]
        for record in records
        if record["run"] in (LONG, *LONG_CHANGES)
        for first in [record["first_step"]]
        for end in range(first + 1000, LONG_STEPS + 1, 2000 if first else 1000)
    ]
    return {**found, "passes": markdown_table([*head, "gamma"], lines, left=2)}


def _row(record: Mapping[str, Any], end: int, name: str) -> list[str]:
    """Medians of the 200 steps before ``end``; the mean of the loss."""
    cells = [f"{np.mean(record['mean_loss'][_bins(record, end)]):.4f}"]
    cells += [_last(record, k, end) for k in [*LABELS][1:]]
    return [f"{end - 199:,}–{end:,}", name, *cells]


def _last(record: Mapping[str, Any], name: str, end: int) -> str:
    """Return the median of the 200 steps before ``end``."""
    return f"{np.median(record[name][_bins(record, end)]):.2g}"


def _bins(record: Mapping[str, Any], end: int) -> slice:
    stop = (end - record["first_step"]) // BIN
    return slice(stop - 200 // BIN, stop)


_CONFIG = "llama_low_noise.yaml"
_MIXTRAL = "mixtral_8x1b/adagc.yaml"
_LONG = (
    "data={kind: fixed_sequences, seq_length: 32, num_sequences: 64}",
    "optimizer.beta2=0.999",
    "schedule={kind: constant, learning_rate: 0.003, warmup_steps: 20}",
    f"train.max_steps={LONG_STEPS}",
    "train.batch_size=32",
    "train.eval_every=0",
    f"train.save_every={CHANGE}",
    "train.keep_checkpoints=8",
    "record={tensors: true, moments: true}",
)
CREEP = Study(
    name="creep",
    runs=[
        *(StudyRun(n, _CONFIG, [*_BASE, *c]) for n, c in COURSES.items()),
        *(
            StudyRun(n, _CONFIG, [*_BASE, *c], "AdaGC", CHANGE)
            for n, c in CHANGES.items()
        ),
        StudyRun(LONG, _MIXTRAL, _LONG),
        *(
            StudyRun(n, _MIXTRAL, [*_LONG, *c], LONG, CHANGE)
            for n, c in LONG_CHANGES.items()
        ),
    ],
    course=course,
    tables=tables,
    figures=figures,
)
