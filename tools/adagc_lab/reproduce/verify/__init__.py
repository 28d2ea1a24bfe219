# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An independent check of the results' pages, with code of its own.

Recomputes every number of every table, every spike count and excess that
follows from a stored loss series, every p, every verdict and the numbers of its
evidence, the figures, the READMEs' tables and what the text says on seeds and
skipped steps, from the lines in ``results/``. It shares nothing with the code
that wrote them: NumPy, SciPy and the standard library alone.
``results/report.json`` says which runs stand in which row and behind which
test; whether these are all runs of that config is checked, too.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adagc_lab.reproduce.verify.numbers import (
    change_text,
    differences,
    limits,
    rate_text,
    rendered,
    row_text,
    sign_flip,
)
from adagc_lab.reproduce.verify.runs import (
    Check,
    Runs,
    StoredRun,
    check_losses,
)
from adagc_lab.reproduce.verify.verdicts import check_verdicts

_COLUMNS = """\
spikes_1000            list    ,.0f  Spikes, window 1,000
events_1000            list    ,.0f  Spike events, window 1,000
score_1000             spread  .3f   Spike score (%), window 1,000
events_200             list    ,.0f  Spike events, window 200
spike_mass             spread  .2f   Spike mass (nat × steps)
worst_jump             range   .3f   Worst loss jump (nat)
moment1_growth         range   .1f   Growth of a first moment (×)
events_above_0.5       list    ,.0f  Excess events above 0.5 nat
excess_area            spread  .1f   Excess area (nat × steps)
excess_area_global     spread  .1f   \
Area over GlobalGC's clean run (nat × steps)
excess_worst           range   .2f   Largest excess (nat)
final_loss             spread  .4f   Training loss (nat)
validation_loss        spread  .4f   Validation loss (nat)
retrieval_accuracy     spread  .1f   Retrieval accuracy (%)
clipped_percent        spread  .1f   Tensors clipped (%)
clip_ms                spread  .2f   Clip time per step (ms)
step_ms                spread  .1f   Step time (ms)
percent_of_global_gc   spread  .1f   Of GlobalGC (%)
paper_global_gc_hours  list    ,.1f  Paper: GlobalGC (GPU h)
paper_adagc_hours      list    ,.1f  Paper: AdaGC (GPU h)
paper_hours_saved      list    ,.1f  Paper: saved (GPU h)
predicted_hours_saved  list    .3f   Plan: saved (GPU h)
global_gc_us           list    .1f   Plan: GlobalGC (µs a step)
adagc_us               list    .1f   Plan: AdaGC (µs a step)"""
COLUMNS = {
    label: (measure, kind, spec)
    for measure, kind, spec, label in (
        line.split(maxsplit=3) for line in _COLUMNS.splitlines()
    )
}
"""Label of a column -> measure, form of its cells, format of a value."""

README_ROWS = ("spike_events", "spike_mass", "excess_area", "validation_loss")
Pages = dict[str, str]


def verify(results: Path, docs: Path) -> int:
    """Print every difference of the pages; 1 if anything differs, else 0."""
    runs = Runs(results)
    report = json.loads((results / "report.json").read_text())
    files = [*docs.rglob("*.md"), *docs.rglob("*.svg")]
    pages = {path.relative_to(docs).as_posix(): path for path in files}
    pages |= {path.name: path for path in docs.parent.glob("README*.md")}
    texts = {name: path.read_text("utf-8") for name, path in pages.items()}
    count = num_wrong = 0
    for name, seen, expected in itertools.chain(
        check_losses(runs.lines),
        runs.check_copies(),
        check_tables(report["tables"], runs, texts),
        check_figures(report["figures"], runs, texts),
        check_verdicts(report["verdicts"], runs, texts),
    ):
        count += 1
        if not same(seen, expected):
            num_wrong += 1
            print(f"{name}: stands {seen!r}, recomputed {expected!r}")
    print(f"{count} values recomputed, {num_wrong} differ")
    return int(num_wrong > 0 or count == 0)


def same(seen: Any, expected: Any) -> bool:
    """Equal; numbers up to what a line keeps of them, 7 digits."""
    if isinstance(seen, list) and isinstance(expected, list):
        return len(seen) == len(expected) and all(map(same, seen, expected))
    if isinstance(seen, (int, float)) and isinstance(expected, (int, float)):
        return math.isclose(seen, expected, rel_tol=1e-6, abs_tol=1e-12) or (
            math.isnan(seen) and math.isnan(expected)
        )
    return bool(seen == expected)


def check_tables(
    listed: list[dict[str, Any]], runs: Runs, pages: Pages
) -> Iterator[Check]:
    """Compare every cell, the runs of each row, and that none is left out."""
    rows_of = {(t["page"], t["title"]): t["rows"] for t in listed}
    shown_configs = set()
    for page in sorted({page for page, _ in rows_of}):
        for part in re.split(r"^### ", pages.get(page, ""), flags=re.M)[1:]:
            title, _, body = part.partition("\n")
            place = f"{page}, {title}"
            table = read_table(body)
            rows = rows_of.pop((page, title), None)
            if rows is None:
                shown = runs.timed(title)
            else:
                shown = {m: runs.of(keys) for m, keys in rows.items()}
                for method, keys in rows.items():
                    longest = runs.longest(shown[method][0])
                    yield f"{place}, {method}: runs", keys, longest
                every = [run for side in shown.values() for run in side]
                shown_configs |= {run.config_id for run in every}
                text = extent(every)
                seen = text if text in body else body.partition("\n|")[0]
                yield f"{place}: seeds and steps", seen, text
            yield f"{place}: rows", [*table], [*shown]
            for method in {*table} & {*shown}:
                name = f"{place}, {method}"
                yield from check_row(name, table[method], method, shown, runs)
    for page, title in rows_of:
        yield f"{page}, {title}", "no such table", "a table"
    for run in runs.runs:
        if not run.is_twin:
            is_shown = run.config_id in shown_configs
            yield f"{run.name}: in a table", is_shown, True


def read_table(body: str) -> dict[str, list[tuple[str, str]]]:
    """Return method -> (column, text) pairs; empty without a table."""
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in body.splitlines()
        if line.startswith("| ")
    ] or [[]]
    return {row[0]: [*zip(head[1:], row[1:], strict=True)] for row in rows}


def check_row(
    place: str,
    cells: list[tuple[str, str]],
    method: str,
    shown: dict[str, list[StoredRun]],
    runs: Runs,
) -> Iterator[Check]:
    """Compare a method's cells; the first method is the reference."""
    seeds = sorted({run.seed for side in shown.values() for run in side})
    own, reference = shown[method], next(iter(shown.values()))
    previous = ""
    for label, text in cells:
        name = f"{place}, {label}"
        if label in COLUMNS:
            measure, kind, spec = COLUMNS[label]
            by_seed = {run.seed: run.measures.get(measure) for run in own}
            values = [by_seed.get(seed) for seed in seeds]
            yield name, text, rendered(values, kind, spec)
            previous = label
        elif label == "Events per 1,000 judged steps":
            yield name, text, rate_text(own)
        elif label.startswith("Δ to "):
            expected = difference_text(own, reference, previous, runs)
            yield f"{name} of {previous}", text, expected
        elif not label.startswith("Paper: "):
            yield name, "an unknown column", "a known one"


def difference_text(
    own: list[StoredRun], reference: list[StoredRun], label: str, runs: Runs
) -> str:
    """Paired differences as a cell of a table."""
    measure, _, spec = COLUMNS[label]
    pairs = runs.pairs(own, reference, measure)
    if own is reference or not pairs:
        return "–"
    d = differences(pairs, measure)
    shown = rendered([*d], "spread", f"+{spec}").replace("± +", "± ")
    return f"{shown} (p {min(1.0, 2 * min(sign_flip(d))):.2g})"


def extent(runs: list[StoredRun]) -> str:
    """Return the sentence above a table: seeds, steps, what is judged."""
    seeds = sorted({run.seed for run in runs})
    lengths = [fn(run.steps for run in runs) for fn in (min, max)]
    skips = sorted({run.skip for run in runs})
    text = (
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}) of "
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys(lengths))} steps, the "
        f"first {' or '.join(f'{n:,}' for n in skips)} not judged; "
    )
    starts = [
        f"from step {' or '.join(f'{n + window:,}' for n in skips)} "
        f"(window {window:,})"
        for window in (1000, 200)
        if any(f"judged_{window}" in run.measures for run in runs)
    ]
    judged = f"spikes are judged {', '.join(starts)}; " if starts else ""
    return f"{text}{judged}processor"


def check_figures(
    figures: list[dict[str, Any]], runs: Runs, pages: Pages
) -> Iterator[Check]:
    """Compare the rows of the figures, and where their numbers are printed."""
    readmes = [name for name in pages if name.startswith("README")]
    for figure, row in ((f, row) for f in figures for row in f["rows"]):
        file = f"images/{figure['file']}"
        place, measure = f"{file}, {row['label']}", row["measure"]
        first, second = runs.of(row["keys"]), runs.of(row["other_keys"])
        pairs = runs.pairs(first, second, measure)
        yield f"{place}: pairs", row["keys"], [a.id for a, _ in pairs]
        others = [b.id for _, b in pairs]
        yield f"{place}: other pairs", row["other_keys"], others
        numbers = limits(measure, pairs)
        stored = [float(row[name]) for name in ("value", "low", "high")]
        yield f"{place}: limits", stored, [*numbers]
        text, change = row_text(measure, *numbers), change_text(measure, pairs)
        yield f"{place}: text", row["text"], text
        yield f"{place}: drawn", f">{text}<" in pages.get(file, ""), True
        yield f"{place}: change", row["change"], change
        if figure["headline"] and measure in README_ROWS:
            line = f"| {len(pairs)} | {change} | {text} |"
            for readme in readmes:
                is_there = f"| {row['label']} |" in pages[readme]
                is_right = is_there and line in pages[readme]
                yield f"{readme}, {row['label']}: {line}", is_right, True
