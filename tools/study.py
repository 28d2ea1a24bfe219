# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure the creep under AdaGC: what it is, and what ends it.

    python tools/creep.py
    python tools/creep.py --check

Trains the Llama proxy in low noise with one development seed: 4,000 steps under
GlobalGC, AdaGC and AdaGC with the preset "release", and from AdaGC's step 3,000
on with half the learning rate, with beta2 0.95 and under GlobalGC. Then writes
results/creep.jsonl, the figures and the tables of docs/creep.md. The same
command resumes after a kill. --check trains nothing; its exit status is 1 if
page or figures are not what results/creep.jsonl gives.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import command
import numpy as np
from adagc_lab import check_installed
from adagc_lab.committed import differences
from adagc_lab.markdown import markdown_table
from adagc_lab.record.files import RunRecord
from adagc_lab.report.drawings import Chart, Line, charts_svg, method_colors

from paddle_adagc.files import atomic_write

CONFIG = command.ROOT / "configs" / "proxy" / "llama_low_noise.yaml"
RESULTS = command.ROOT / "results" / "creep.jsonl"
PAGE = command.ROOT / "docs" / "creep.md"
IMAGES = command.ROOT / "docs" / "images"
SEED, STEPS, CHANGE, BIN = 606, 4000, 3000, 50
DRAWN = 200
"""Step from which courses are drawn: the descent would hide the rest."""

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

LABELS = {
    "loss": "loss (nat)",
    "norm": "global gradient norm, before the clip",
    "h": "median h",
    "second_moment": "√Σv, Adam's second moment",
    "update": "norm of the update",
}
_OPTIONS = """
--output OUTPUT   folder for the runs (default: %(default)s)
--check           train nothing, compare page and figures with the results
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = command.make_parser("creep", __doc__)
    output = {"type": Path, "default": Path("outputs/creep")}
    command.add_options(parser, _OPTIONS, output=output)
    options = parser.parse_args(arguments)
    return command.exit_status(parser, _creep, options)


def _creep(options: argparse.Namespace) -> int:
    if not options.check:
        check_installed("paddlenlp", "nlp")
        records = [measured(options.output, *run) for run in all_runs()]
        text = "".join(json.dumps(record) + "\n" for record in records)
        atomic_write(RESULTS, text)
    made = made_files(read_records())
    stale = [
        path
        for path, text in made.items()
        if differences(path.read_text("utf-8"), text)
    ]
    for path in [] if options.check else stale:
        atomic_write(path, made[path])
    if stale and options.check:
        names = ", ".join(path.name for path in stale)
        print(f"{names}: not what {RESULTS.name} gives", file=sys.stderr)
    return int(bool(stale and options.check))


def all_runs() -> list[tuple[str, list[str], int]]:
    """Name, changes of the config, and the step from which they apply."""
    return [
        *((name, changes, 0) for name, changes in COURSES.items()),
        *((name, changes, CHANGE) for name, changes in CHANGES.items()),
    ]


def measured(
    output: Path, name: str, changes: list[str], start: int
) -> dict[str, Any]:
    """Train, or continue, one run; return its course as JSON values."""
    base = [f"train.seed={SEED}", f"train.max_steps={STEPS}"]
    base += ["train.save_every=500", "train.keep_checkpoints=8"]
    folder = output / f"{name.replace(' ', '_')}_{start}"
    is_fork = bool(start) and not folder.exists()
    run = output / "AdaGC_0" if is_fork else folder
    arguments = [str(CONFIG), *base, f"train.output_dir={run}", *changes]
    if is_fork:
        arguments += ["--fork", str(folder), "--at", str(start)]
    subprocess.run(
        [sys.executable, command.ROOT / "tools" / "pretrain.py", *arguments],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return course(RunRecord.load(folder), name, start)


def course(run: RunRecord, name: str, start: int) -> dict[str, Any]:
    """Medians of BIN steps each from ``start`` on; of the loss also maxima."""
    norm = np.sqrt(np.square(run.tensors["norm"].astype(float)).sum(1))
    series = {
        "loss": run.loss,
        "norm": norm,
        "h": np.median(run.h, axis=1),
        "second_moment": run.metrics["second_moment_root"],
        "update": run.metrics["update_norm"],
    }
    bins = {k: v[start:].reshape(-1, BIN) for k, v in series.items()}
    values = {k: rounded(np.median(v, axis=1)) for k, v in bins.items()}
    values["largest_loss"] = rounded(bins["loss"].max(axis=1))
    values["mean_loss"] = rounded(bins["loss"].mean(axis=1))
    about = {"run": name, "first_step": start, "bin": BIN, "seed": SEED}
    machine = run.run.get("machine", {}).get("processor")
    return {**about, "processor": machine, **values}


def rounded(values: np.ndarray) -> list[float]:
    """Six significant digits: training in float32 has no more."""
    return [float(f"{value:.6g}") for value in values]


def read_records() -> list[dict[str, Any]]:
    """Read results/creep.jsonl."""
    lines = RESULTS.read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def made_files(records: list[dict[str, Any]]) -> dict[Path, str]:
    """Figures and page, with their text."""
    courses = {r["run"]: r for r in records if not r["first_step"]}
    forks = {r["run"]: r for r in records if r["first_step"]}
    unchanged = tail(courses["AdaGC"], CHANGE // BIN)
    forks = {"AdaGC, unchanged": unchanged, **forks}
    page = PAGE.read_text("utf-8")
    for mark, table in (
        ("course", course_table(courses)),
        ("causes", causes_table(forks)),
    ):
        begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return {
        IMAGES / "creep-course.svg": figure(
            "One seed of the Llama proxy in low noise",
            {name: tail(r, DRAWN // BIN) for name, r in courses.items()},
            LABELS,
            DRAWN,
        ),
        IMAGES / "creep-causes.svg": figure(
            f"What changes at step {CHANGE:,} of AdaGC's run",
            forks,
            ["loss", "norm", "second_moment", "update"],
            CHANGE,
        ),
        PAGE: page,
    }


def tail(record: dict[str, Any], since: int) -> dict[str, Any]:
    """Return a record from bin ``since`` on."""
    rest = {k: v[since:] for k, v in record.items() if isinstance(v, list)}
    return {**record, **rest, "first_step": record["first_step"] + since * BIN}


def figure(title: str, records: dict[str, Any], names: Any, start: int) -> str:
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


def course_table(courses: dict[str, Any]) -> str:
    """AdaGC's course, and how the others end: medians of 200 steps."""
    head = ["steps", "under", *(text for text in LABELS.values())]
    rows = []
    for end in range(1000, STEPS + 1, 1000):
        rows.append(_row(courses["AdaGC"], end, "AdaGC"))
    for name, record in courses.items():
        if name != "AdaGC":
            rows.append(_row(record, STEPS, name))
    return markdown_table(head, rows, left=2)


def causes_table(runs: dict[str, Any]) -> str:
    """How each run ends, and its largest loss: the last 200 steps."""
    head = ["", "largest loss", *LABELS.values()]
    rows = []
    for name, record in runs.items():
        largest = f"{max(record['largest_loss']):.3g}"
        rows.append([name, largest, *_row(record, STEPS, name)[2:]])
    return markdown_table(head, rows)


def _row(record: dict[str, Any], end: int, name: str) -> list[str]:
    stop = (end - record["first_step"]) // BIN
    last = slice(stop - 200 // BIN, stop)
    cells = [f"{np.mean(record['mean_loss'][last]):.4f}"]
    cells += [f"{np.median(record[k][last]):.2g}" for k in [*LABELS][1:]]
    return [f"{end - 199:,}–{end:,}", name, *cells]


if __name__ == "__main__":
    raise SystemExit(main())
