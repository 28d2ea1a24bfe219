# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables of the pages, cell by cell, and the rows of the figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from paddle_adagc.lab.reproduce.verify.numbers import (
    change_text,
    counts,
    differences,
    limits,
    row_text,
    sign_flip,
)
from paddle_adagc.lab.reproduce.verify.runs import (
    Check,
    Runs,
    StoredRun,
    run_id,
    steps,
)

# Column: measure, "list", "range" or "spread", formats of value and difference.
COLUMNS: dict[str, tuple[str, str, str, str | None]] = {
    "Spikes, window 1,000": ("spikes_1000", "list", ",.0f", None),
    "Spike events, window 1,000": ("events_1000", "list", ",.0f", None),
    "Spike score (%), window 1,000": ("score_1000", "spread", ".3f", None),
    "Spike events, window 200": ("events_200", "list", ",.0f", None),
    "Spike mass (nat × steps)": ("spike_mass", "spread", ".2f", None),
    "Area over GlobalGC's clean run (nat × steps)": (
        "excess_area_global",
        "spread",
        ".1f",
        "+.1f",
    ),
    "Worst loss jump (nat)": ("worst_jump", "range", ".3f", None),
    "Growth of a first moment (×)": ("moment1_growth", "range", ".1f", None),
    "Excess events above 0.5 nat": ("events_above_0.5", "list", ",.0f", None),
    "Excess area (nat × steps)": ("excess_area", "spread", ".1f", "+.1f"),
    "Largest excess (nat)": ("excess_worst", "range", ".2f", None),
    "Training loss (nat)": ("final_loss", "spread", ".4f", "+.4f"),
    "Validation loss (nat)": ("validation_loss", "spread", ".4f", "+.4f"),
    "Retrieval accuracy (%)": ("retrieval_accuracy", "spread", ".1f", "+.1f"),
    "Tensors clipped (%)": ("clipped_percent", "spread", ".1f", None),
    "Clip time per step (ms)": ("clip_ms", "spread", ".2f", None),
    "Step time (ms)": ("step_ms", "spread", ".1f", None),
    "Of GlobalGC (%)": ("percent_of_global_gc", "spread", ".1f", None),
    "Paper: GlobalGC (GPU h)": ("paper_global_gc_hours", "list", ",.1f", None),
    "Paper: AdaGC (GPU h)": ("paper_adagc_hours", "list", ",.1f", None),
    "Paper: saved (GPU h)": ("paper_hours_saved", "list", ",.1f", None),
    "Plan: saved (GPU h)": ("predicted_hours_saved", "list", ".3f", None),
    "Plan: GlobalGC (µs a step)": ("global_gc_us", "list", ".1f", None),
    "Plan: AdaGC (µs a step)": ("adagc_us", "list", ".1f", None),
}


def check_tables(
    listed: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare every cell of every table, and which runs its rows hold."""
    rows_of = {(t["page"], t["title"]): t["rows"] for t in listed}
    for page in sorted({page for page, _ in rows_of}):
        for title, table in read_tables(pages.get(page, "")):
            place = f"{page}, {title}"
            rows = rows_of.pop((page, title), None)
            if rows is None:
                shown = runs.timed(title)
            else:
                shown = {m: runs.of(keys) for m, keys in rows.items()}
                for method, keys in rows.items():
                    longest = runs.longest(shown[method][0])
                    yield f"{place}, {method}: runs", keys, longest
            yield f"{place}: rows", [*table], [*shown]
            for method, cells in table.items():
                if method in shown:
                    name = f"{place}, {method}"
                    yield from check_row(name, cells, method, shown, runs)
    for page, title in rows_of:
        yield f"{page}, {title}", "no such table", "a table"
    yield from check_every_run_is_shown(listed, runs)


def check_every_run_is_shown(
    listed: list[dict[str, Any]], runs: Runs
) -> Iterator[Check]:
    """No method is left out of the tables."""
    rows = [keys for table in listed for keys in table["rows"].values()]
    shown = {c["config_id"] for keys in rows for c in runs.of(keys)}
    for cell in runs.runs:
        if not cell["twin"]:
            place = f"{cell['file']}, {cell['experiment']}, {cell['method']}"
            yield f"{place}: in a table", cell["config_id"] in shown, True


def check_row(
    place: str,
    cells: list[tuple[str, str]],
    method: str,
    shown: dict[str, list[StoredRun]],
    runs: Runs,
) -> Iterator[Check]:
    """Compare a method's cells; the first method is the reference."""
    seeds = sorted({c["seed"] for side in shown.values() for c in side})
    own, reference = shown[method], next(iter(shown.values()))
    previous = ""
    for label, text in cells:
        name = f"{place}, {label}"
        if label in COLUMNS:
            measure, kind, spec, _ = COLUMNS[label]
            by_seed = {c["seed"]: c["measures"].get(measure) for c in own}
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


def read_tables(
    page: str,
) -> Iterator[tuple[str, dict[str, list[tuple[str, str]]]]]:
    """Tables below a heading of level 3: method -> (column, text) pairs."""
    for part in re.split(r"^### ", page, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        rows = [
            [cell.strip() for cell in line.strip("|").split(" | ")]
            for line in body.splitlines()
            if line.startswith("| ")
        ]
        if rows:
            head = rows[0][1:]
            yield (
                title,
                {
                    row[0]: [*zip(head, row[1:], strict=True)]
                    for row in rows[1:]
                },
            )


def rendered(values: list[float | None], kind: str, spec: str) -> str:
    """Values of seeds as a cell of a table."""
    known = [v for v in values if v is not None]
    n, share = len(known), f" ({len(known)} of {len(values)})"
    share *= n < len(values)
    if np.isfinite(known).all():
        if kind == "spread" and n > 1:
            mean = math.fsum(known) / n  # ties round alike
            return f"{mean:{spec}} ± {np.std(known, ddof=1):{spec}}{share}"
        if kind == "range" and n > 5:
            low, middle, high = np.quantile(known, [0, 0.5, 1])
            return f"{middle:{spec}} ({low:{spec}}-{high:{spec}}){share}"
        if kind == "range" and n:
            return " / ".join(f"{v:{spec}}" for v in known) + share
    texts = [number_text(v, spec) for v in values]
    return "–" if set(texts) == {"–"} else " / ".join(texts)


def number_text(value: float | None, spec: str) -> str:
    """One seed's value."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:{spec}}"


def difference_text(
    own: list[StoredRun], reference: list[StoredRun], label: str, runs: Runs
) -> str:
    """Paired differences as a cell of a table."""
    measure, _, _, signed = COLUMNS[label]
    pairs = runs.pairs(own, reference, measure)
    if own is reference or not pairs:
        return "–"
    d = differences(pairs, measure)
    shown = rendered([*d], "spread", signed or "+.4g")
    return f"{shown.replace('± +', '± ')} (p {sign_flip(d, 'two-sided'):.2g})"


def rate_text(runs: list[StoredRun]) -> str:
    """Events per 1,000 judged steps with their exact 95% limits."""
    known = [
        c
        for c in runs
        if c["measures"].get("judged_1000") and "events_1000" in c["measures"]
    ]
    if not known:
        return "–"
    events, judged = (side.sum() for side in counts(known))
    low = stats.gamma.ppf(0.025, events) if events else 0.0
    high = stats.gamma.ppf(0.975, events + 1)
    value, low, high = (1000 * n / judged for n in (events, low, high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


_EXTENT = re.compile(
    r"(\d+) seeds? \(([\d, ]+)\) of ([\d,]+(?: to [\d,]+)?) steps, the first "
    r"([\d, or]+) not judged(?:; spikes are judged ([^;]+))?; processor"
)
README_ROWS = ("spike_events", "spike_mass", "excess_area", "validation_loss")


def check_extents(
    listed: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare what stands above a table: seeds, steps, what is judged."""
    for table in listed:
        page, title = table["page"], table["title"]
        part = pages.get(page, "").partition(f"### {title}\n")[2]
        found = _EXTENT.search(part.partition("\n|")[0])
        shown = [c for keys in table["rows"].values() for c in runs.of(keys)]
        expected = extent(shown)
        seen = [*found.groups()] if found else []
        yield f"{page}, {title}: seeds and steps", seen, expected


def extent(cells: list[StoredRun]) -> list[str | None]:
    """Number of seeds, the seeds, steps, skipped steps, first judged ones."""
    seeds = sorted({c["seed"] for c in cells})
    lengths = [min(map(steps, cells)), max(map(steps, cells))]
    skips = sorted({c["skip"] for c in cells})
    starts = [
        f"from step {' or '.join(f'{n + window:,}' for n in skips)} "
        f"(window {window:,})"
        for window in (1000, 200)
        if any(f"judged_{window}" in c["measures"] for c in cells)
    ]
    return [
        str(len(seeds)),
        ", ".join(map(str, seeds)),
        " to ".join(f"{n:,}" for n in dict.fromkeys(lengths)),
        " or ".join(f"{n:,}" for n in skips),
        ", ".join(starts) or None,
    ]


def check_figures(
    figures: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare the rows of the figures, and where their numbers are printed."""
    readmes = [name for name in pages if name.startswith("README")]
    for figure in figures:
        file = f"images/{figure['file']}"
        for row in figure["rows"]:
            place = f"{file}, {row['label']}"
            measure = row["measure"]
            pairs = runs.pairs(
                runs.of(row["keys"]), runs.of(row["other_keys"]), measure
            )
            yield f"{place}: pairs", row["keys"], [run_id(a) for a, _ in pairs]
            others = [run_id(b) for _, b in pairs]
            yield f"{place}: other pairs", row["other_keys"], others
            value, low, high = limits(measure, pairs)
            stored = [row["value"], row["low"], float(row["high"])]
            yield f"{place}: limits", stored, [value, low, high]
            text = row_text(measure, value, low, high)
            yield f"{place}: text", row["text"], text
            yield f"{place}: drawn", f">{text}<" in pages.get(file, ""), True
            change = change_text(measure, pairs)
            yield f"{place}: change", row["change"], change
            line = f"| {len(pairs)} | {change} | {text} |"
            is_shown = figure["headline"] and measure in README_ROWS
            for readme in readmes if is_shown else ():
                is_there = f"| {row['label']} |" in pages[readme]
                is_right = is_there and line in pages[readme]
                yield f"{readme}, {row['label']}: {line}", is_right, True
