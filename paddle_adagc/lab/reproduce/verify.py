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
"""An independent check of the results' pages, with code of its own.

Recomputes every number of every table, every spike count and excess that
follows from a stored loss series, every p, every verdict and the numbers of its
evidence, from the lines in ``results/``. It shares nothing with the code that
wrote them: NumPy, SciPy and the standard library alone. ``results/report.json``
says which runs stand in which row and behind which test; whether these are all
runs of that config is checked, too.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

SEEDS = 8
ALPHA = 0.05
NO_CELLS = {"gpu.jsonl", "mutation.jsonl", "soak.jsonl", "versions.jsonl"}
NOT_CONFIG = {"train.seed", "data.seed", "train.max_steps"}
CLIP_DEFAULTS: dict[str, dict[str, float]] = {
    "adagc": {
        "lambda_rel": 1.04,
        "beta": 0.99,
        "lambda_abs": 1,
        "t_start": 100,
    },
    "global_norm": {"lambda_abs": 1},
    "value": {"lambda_abs": 0.001},
    "global_adagc": {
        "lambda_rel": 1.04,
        "beta": 0.99,
        "lambda_abs": 1,
        "t_start": 100,
    },
    "tensor_wise": {"lambda_abs": 1},
}
# Column: measure, "list" or "spread", format, format of the difference.
COLUMNS: dict[str, tuple[str, str, str, str | None]] = {
    "Spikes, window 1,000": ("spikes_1000", "list", ",.0f", None),
    "Spike events, window 1,000": ("events_1000", "list", ",.0f", None),
    "Spike score (%), window 1,000": ("score_1000", "spread", ".3f", None),
    "Spike events, window 200": ("events_200", "list", ",.0f", None),
    "Worst loss jump (nat)": ("worst_jump", "list", ".3f", None),
    "Growth of a first moment (×)": ("moment1_growth", "list", ".1f", None),
    "Excess events above 0.5 nat": ("events_above_0.5", "list", ",.0f", None),
    "Excess area (nat × steps)": ("excess_area", "spread", ".1f", "+.1f"),
    "Largest excess (nat)": ("excess_worst", "list", ".2f", None),
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

Cell = dict[str, Any]


def verify(results: Path, docs: Path) -> int:
    """Print every difference.

    Args:
        results: Folder of the result files and of ``report.json``.
        docs: Folder of the pages.

    Returns:
        1 if anything differs, else 0.
    """
    checks = Checks(results, docs)
    for line in checks.differences():
        print(line)
    print(f"{checks.count} values recomputed, {checks.num_wrong} differ")
    return int(checks.num_wrong > 0 or checks.count == 0)


class Checks:
    """Everything that can be recomputed from a results folder."""

    def __init__(self, results: Path, docs: Path) -> None:
        self.count = self.num_wrong = 0
        self.lines = [*read_cells(results)]
        self.report = json.loads((results / "report.json").read_text())
        self.runs = {
            (c["key"], cpu(c), c["twin"]): c
            for c in reversed(self.lines)
            if steps(c)
        }
        self._keyed: dict[str, list[Cell]] = {}
        for cell in sorted(self.runs.values(), key=lambda c: c["twin"]):
            self._keyed.setdefault(cell["key"], []).append(cell)
        self.pages = {path.name: path.read_text() for path in docs.glob("*.md")}

    def differences(self) -> Iterator[str]:
        """One line per difference."""
        for name, seen, expected in itertools.chain(
            self._copies(), self._series(), self._tables(), self._verdicts()
        ):
            self.count += 1
            if not same(seen, expected):
                self.num_wrong += 1
                yield f"{name}: stands {seen!r}, recomputed {expected!r}"

    def _by_key(self, key: str) -> list[Cell]:
        return self._keyed.get(key, [])

    def _copies(self) -> Iterator[tuple[str, Any, Any]]:
        """Compare the measures of a run that several files hold."""
        for cell in self.lines:
            if steps(cell):
                first = self.runs[cell["key"], cpu(cell), cell["twin"]]
                name = f"{cell['file']}, {cell['method']} {cell['seed']}"
                for measure, value in cell["measures"].items():
                    if not measure.endswith("_ms"):
                        other = first["measures"].get(measure, value)
                        yield f"{name}: copies' {measure}", value, other

    def _series(self) -> Iterator[tuple[str, Any, Any]]:
        twins = {
            (c["file"], c["experiment"], c["method"], c["seed"]): c
            for c in self.lines
            if c["twin"] and c.get("series")
        }
        for cell in self.lines:
            if not cell.get("series"):
                continue
            place = (
                cell["file"],
                cell["experiment"],
                cell["method"],
                cell["seed"],
            )
            clean = None if cell["twin"] else twins.get(place)
            for measure, value in from_series(cell, clean).items():
                name = f"{'/'.join(map(str, place))} {measure}"
                yield name, cell["measures"].get(measure), value

    def _tables(self) -> Iterator[tuple[str, Any, Any]]:
        listed = {
            (t["page"], t["title"]): t["rows"] for t in self.report["tables"]
        }
        for page in sorted({page for page, _ in listed}):
            for title, table in tables(self.pages.get(page, "")):
                rows = listed.pop((page, title), None)
                if rows is None:
                    runs = self._timed(title)
                else:
                    yield from self._rows_complete(f"{page}, {title}", rows)
                    runs = {
                        method: [self._by_key(key)[0] for key in keys]
                        for method, keys in rows.items()
                    }
                yield f"{page}, {title}: rows", [*table], [*runs]
                for method, cells in table.items():
                    if method in runs:
                        yield from self._row(
                            f"{page}, {title}", method, cells, runs
                        )
        yield from self._every_run_stands_somewhere()
        for page, title in listed:
            yield f"{page}, {title}", "no such table", "a table"

    def _every_run_stands_somewhere(self) -> Iterator[tuple[str, Any, Any]]:
        """No method is left out of the tables."""
        shown = {
            self._by_key(key)[0]["config_id"]
            for table in self.report["tables"]
            for keys in table["rows"].values()
            for key in keys
        }
        for cell in self.runs.values():
            if not cell["twin"]:
                place = (
                    f"{cell['file']}, {cell['experiment']}, {cell['method']}"
                )
                is_shown = cell["config_id"] in shown
                yield f"{place}: in a table", is_shown, True

    def _timed(self, title: str) -> dict[str, list[Cell]]:
        runs: dict[str, list[Cell]] = {}
        for cell in self.lines:
            if cell["title"] == title and not steps(cell):
                runs.setdefault(cell["method"], []).append(cell)
        return runs

    def _rows_complete(
        self, place: str, rows: dict[str, list[str]]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Each row holds the longest run of every seed of its config."""
        for method, keys in rows.items():
            yield f"{place}, {method}: runs", keys, self._all_of(keys[0])

    def _all_of(self, key: str) -> list[str]:
        own = self._by_key(key)[0]
        best: dict[int, Cell] = {}
        for cell in sorted(self.runs.values(), key=steps):
            is_longer = cell["seed"] not in best or steps(cell) > steps(
                best[cell["seed"]]
            )
            if is_one_config(own, cell) and is_longer:
                best[cell["seed"]] = cell
        return [best[seed]["key"] for seed in sorted(best)]

    def _row(
        self,
        place: str,
        method: str,
        cells: list[tuple[str, str]],
        runs: dict[str, list[Cell]],
    ) -> Iterator[tuple[str, Any, Any]]:
        seeds = sorted({c["seed"] for side in runs.values() for c in side})
        previous = ""
        reference = next(iter(runs))
        for label, text in cells:
            name = f"{place}, {method}, {label}"
            column = COLUMNS.get(label)
            if column:
                measure, kind, spec, _ = column
                by_seed = {
                    c["seed"]: c["measures"].get(measure) for c in runs[method]
                }
                values = [by_seed.get(seed) for seed in seeds]
                yield name, text, rendered(values, kind, spec)
                previous = label
            elif label == "Events per 1,000 judged steps":
                yield name, text, rate_text(runs[method])
            elif label.startswith("Δ to "):
                measure, _, _, signed = COLUMNS[previous]
                pairs = self._pairs(runs[method], runs[reference], measure)
                expected = "–"
                if method != reference and pairs:
                    d = differences(pairs, measure)
                    shown = rendered([*d], "spread", signed or "+.4g")
                    p = sign_flip(d, "two-sided")
                    expected = f"{shown.replace('± +', '± ')} (p {p:.2g})"
                yield f"{name} of {previous}", text, expected
            elif not label.startswith("Paper: "):
                yield name, "an unknown column", "a known one"

    def _pairs(
        self, first: list[Cell], second: list[Cell], measure: str
    ) -> list[tuple[Cell, Cell]]:
        """Return every seed's longest pair, whatever the rows show."""
        if not (first and second) or not steps(first[0]):
            by_seed = {c["seed"]: c for c in second}
            return [
                (c, by_seed[c["seed"]]) for c in first if c["seed"] in by_seed
            ]
        found: dict[int, tuple[Cell, Cell]] = {}
        ones = [c for c in self.runs.values() if is_one_config(first[0], c)]
        others = [c for c in self.runs.values() if is_one_config(second[0], c)]
        for a, b in itertools.product(ones, others):
            if (a["seed"], steps(a), cpu(a)) != (b["seed"], steps(b), cpu(b)):
                continue
            if measure not in a["measures"] or measure not in b["measures"]:
                continue
            known = found.get(a["seed"])
            if known is None or steps(a) > steps(known[0]):
                found[a["seed"]] = (a, b)
        return [found[seed] for seed in sorted(found)]

    def _verdicts(self) -> Iterator[tuple[str, Any, Any]]:
        judged = []
        for verdict in self.report["verdicts"]:
            tests = [self._tests(c) for c in verdict["comparisons"]]
            for comparison, test in zip(
                verdict["comparisons"], tests, strict=True
            ):
                name = f"{verdict['id']}, {comparison['method']}"
                for key in ("p_for", "p_against", "p_equal"):
                    yield f"{name}, {key}", comparison.get(key), test.get(key)
                yield from self._keys_complete(name, comparison)
                if comparison["expect"] != "at most" or "keys" in comparison:
                    num = self._num_seeds(comparison)
                    yield f"{name}: seeds", comparison.get("num_seeds"), num
            judged.append((verdict, tests))
        adjusted = adjust([(v, t) for v, t in judged if v["primary"]])
        for verdict, tests in judged:
            p = adjusted.get(verdict["id"]) or claim_p(verdict, tests)
            yield (
                f"{verdict['id']}: p",
                [verdict["p_for"], verdict["p_against"]],
                [*p],
            )
            expected = label_of(verdict, tests, *p)
            yield f"{verdict['id']}: verdict", verdict["verdict"], expected
            yield from self._evidence(verdict, tests)

    def _keys_complete(
        self, name: str, comparison: dict[str, Any]
    ) -> Iterator[tuple[str, Any, Any]]:
        keys = comparison.get("keys")
        others = comparison.get("other_keys")
        if keys and others:
            measure = comparison["measure"].replace(
                "spike_events", "events_1000"
            )
            sides = [
                [self._by_key(k)[0] for k in side] for side in (keys, others)
            ]
            pairs = self._pairs(sides[0], sides[1], measure)
            if measure == "events_1000":
                pairs = [
                    p
                    for p in pairs
                    if all(c["measures"]["judged_1000"] for c in p)
                ]
            yield f"{name}: pairs", keys, [a["key"] for a, _ in pairs]
            yield f"{name}: other pairs", others, [b["key"] for _, b in pairs]

    def _num_seeds(self, comparison: dict[str, Any]) -> int | None:
        """Seeds behind the test; 0 if a side that it needs is missing."""
        if not self._tests(comparison) or "values" in comparison:
            return 0
        keys = comparison.get("keys", ())
        return len({self._by_key(key)[0]["seed"] for key in keys})

    def _tests(self, comparison: dict[str, Any]) -> dict[str, float | None]:
        sides = [
            [self._by_key(key)[0] for key in comparison.get(side, ())]
            for side in ("keys", "other_keys")
        ]
        return tests_of(comparison, *sides)

    def _evidence(
        self, verdict: dict[str, Any], tests: list[dict[str, float | None]]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Return the label and the numbers in the claim's line on its pages."""
        p_values = [verdict["p_for"], verdict["p_against"]]
        for test in tests:
            p_values += [p for p in test.values() if p is not None]
        known = {f"{p:.3g}" for p in p_values} | self._facts(verdict)
        words = {"reproduced": "holds", "contradicted": "does not hold"}
        for page, text in self.pages.items():
            for line in text.splitlines():
                cells = [c.strip() for c in line.strip("|").split(" | ")]
                claim = verdict["claim"].replace("|", "\\|")
                if cells[0] != verdict["where"] or not (
                    len(cells) == 4 and cells[1].startswith(claim)
                ):
                    continue
                label = verdict["verdict"]
                shown = cells[2].strip("*")
                is_right = shown in (label, words.get(label))
                yield (
                    f"{page}, {verdict['id']}",
                    shown,
                    shown if is_right else label,
                )
                for number in numbers_of(cells[3]):
                    name = f"{page}, {verdict['id']}: {number}"
                    yield name, number, number if number in known else "?"

    def _facts(self, verdict: dict[str, Any]) -> set[str]:
        """Return counts and mean differences of all runs that a claim names."""
        facts = set()
        for c in verdict["comparisons"]:
            sides = [
                [self._by_key(key)[0] for key in c.get(side, ())]
                for side in ("keys", "other_keys", "beside_keys")
            ]
            if c["measure"] == "spike_events":
                facts |= {count_text(side) for side in sides if side}
            elif sides[1]:
                pairs = [*zip(sides[0], sides[1], strict=True)]
                facts.add(mean_text(differences(pairs, c["measure"])))
        for keys in verdict["controls"].values():
            facts.add(count_text([self._by_key(key)[0] for key in keys]))
        return facts


def read_cells(folder: Path) -> Iterator[Cell]:
    """Every cell line with its experiment's config and title."""
    for path in sorted(folder.glob("*.jsonl")):
        if path.name in NO_CELLS:
            continue
        experiment: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            if fields["kind"] == "experiment":
                experiment = fields
            elif fields["kind"] == "cell":
                config = experiment["config"] | fields.get("config", {})
                yield {
                    **fields,
                    "measures": {
                        k: float(v) for k, v in fields["measures"].items()
                    },
                    "config": config,
                    "config_id": config_id(config),
                    "file": path.stem,
                    "experiment": experiment["name"],
                    "title": experiment["title"],
                    "skip": experiment["skip_steps"],
                    "key": fields.get("key", ""),
                    "twin": bool(fields.get("is_clean_twin")),
                }


def steps(cell: Cell) -> int:
    """Length of a run, 0 for a timing."""
    return int(cell["measures"].get("steps", 0))


def cpu(cell: Cell) -> str:
    """Its processor's model, "" if the line has none."""
    machine = cell.get("machine", {})
    return str(machine["processor"]) if "instruction_sets" in machine else ""


def is_one_config(first: Cell, second: Cell) -> bool:
    """Whether two runs differ in the seed alone, and in steps if they may."""
    constant = first["config"].get("schedule.kind") == "constant"
    return bool(
        first["config_id"] == second["config_id"]
        and (constant or steps(first) == steps(second))
    )


def config_id(config: dict[str, Any]) -> str:
    """Return the config without seed, length and the clip's defaults."""
    kept = {
        key: value
        for key, value in config.items()
        if key not in NOT_CONFIG and not is_default(key, value, config)
    }
    return json.dumps(kept, sort_keys=True)


def is_default(key: str, value: Any, config: dict[str, Any]) -> bool:
    """Whether an argument of the clip says what holds without it."""
    known = CLIP_DEFAULTS.get(str(config.get("clip.name")), {})
    name = key.removeprefix("clip.")
    return key.startswith("clip.") and name in known and known[name] == value


def tables(page: str) -> Iterator[tuple[str, dict[str, list[tuple[str, str]]]]]:
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


def from_series(cell: Cell, clean: Cell | None) -> dict[str, float | None]:
    """Measures that follow from a line's own losses, and its twin's."""
    loss = decode(cell["series"]["loss"])
    bad = covered(cell["series"]["left_out"])
    kept = np.array([i not in bad for i in range(len(loss))])
    skip = int(kept[: cell["skip"]].sum())
    last = np.arange(len(loss)) >= len(loss) - 100
    found: dict[str, float | None] = {
        "final_loss": float(loss[kept & last].mean())
    }
    for window in (1000, 200):
        spikes, num_judged = spike_steps(loss[kept], window, skip)
        if cell.get("status") == "diverged" and not len(spikes):
            names = ("spikes", "events", "judged")
            found |= {f"{name}_{window}": 1 for name in names}
        elif num_judged or len(spikes):
            found |= {
                f"judged_{window}": num_judged,
                f"spikes_{window}": len(spikes),
                f"events_{window}": len(runs_of(spikes, 10)),
                f"score_{window}": 100 * len(spikes) / int(kept.sum()),
            }
    if clean is not None and cell["series"]["faults"]:
        other = decode(clean["series"]["loss"])
        found |= excess(cell, loss, other, bad)
    return found


def decode(packed: dict[str, Any]) -> np.ndarray:
    """Losses of a series, ``[num_steps]``; ValueError if it is damaged."""
    if packed["encoding"] != "log16-delta-zlib-base64":
        raise ValueError(f"unknown encoding {packed['encoding']!r}")
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    half = packed["num_steps"]
    high, low = (np.frombuffer(raw, np.uint8)[i : i + half] for i in (0, half))
    codes = np.cumsum(256 * high.astype(np.int64) + low) % 65_536
    span = packed["high"] - packed["low"]
    loss = np.exp(packed["low"] + codes * (span / 65_533))
    loss[codes == 65_534], loss[codes == 65_535] = np.inf, np.nan
    return loss


def covered(spans: list[list[int]]) -> set[int]:
    """Return steps of pairs of first and last step."""
    return {step for a, b in spans for step in range(a, b + 1)}


def spike_steps(
    loss: np.ndarray, window: int, skip: int
) -> tuple[list[int], int]:
    """Return steps 10 deviations off the window, and how many are judged."""
    steps_ = np.arange(len(loss))
    finite = steps_[np.isfinite(loss) & (steps_ >= skip)]
    spikes = [int(i) for i in steps_[~np.isfinite(loss) & (steps_ >= skip)]]
    for place in range(window, len(finite)):
        before = loss[finite[place - window : place]]
        distance = abs(loss[finite[place]] - before.mean())
        if distance > 0 and distance >= 10 * before.std(ddof=1):
            spikes.append(int(finite[place]))
    judged = max(0, len(finite) - window) + len(loss) - skip - len(finite)
    return sorted(spikes), max(0, judged) if len(loss) > skip else 0


def runs_of(marked: list[int], gap: int) -> list[list[int]]:
    """Neighbouring steps, at most ``gap`` apart, as lists."""
    groups: list[list[int]] = []
    for step in marked:
        if groups and step - groups[-1][-1] <= gap:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def excess(
    cell: Cell, loss: np.ndarray, clean: np.ndarray, bad: set[int]
) -> dict[str, float | None]:
    """Area, largest value and events of the loss over its twin's."""
    size = len(clean) if cell.get("status") == "diverged" else len(loss)
    size = min(size, len(clean))
    padded = np.full(size, np.nan)
    padded[: min(size, len(loss))] = loss[:size]
    start = cell["series"]["faults"][0][0]
    above = np.where(np.isfinite(padded), padded - clean[:size], np.inf)
    judged = [
        i for i in range(start, size) if i not in bad and np.isfinite(clean[i])
    ]
    groups = runs_of([i for i in judged if above[i] > 0.2], 10)
    peaks = [
        max(above[i] for i in judged if g[0] <= i <= g[-1]) for g in groups
    ]
    return {
        "excess_area": float(above[judged].sum()),
        "excess_worst": float(above[judged].max()),
        "events_above_0.2": len(peaks),
        "events_above_0.5": sum(peak > 0.5 for peak in peaks),
    }


def tests_of(
    comparison: dict[str, Any], first: list[Cell], second: list[Cell]
) -> dict[str, float | None]:
    """The three p-values of a comparison."""
    expect, measure = comparison["expect"], comparison["measure"]
    margin: Any = comparison.get("margin")
    if not comparison.get("num_seeds", 1):
        return {}
    if expect == "at most":
        return bound_tests(comparison, first)
    if measure == "spike_events":
        return event_tests(comparison, first, second)
    d = differences(
        [*zip(first, second, strict=True)], measure, comparison.get("times", 1)
    )
    if expect == "no worse":
        return {
            "p_for": sign_flip(d - margin, "less"),
            "p_against": sign_flip(d - margin, "greater"),
        }
    if expect == "equal":
        beyond = min(
            sign_flip(d - margin, "greater"), sign_flip(d + margin, "less")
        )
        return {"p_for": within(d, margin), "p_against": min(1.0, 2 * beyond)}
    sides = [sign_flip(d, "less"), sign_flip(d, "greater")]
    p_for, p_against = sides if expect == "lower" else sides[::-1]
    equal = None if margin is None else within(d, margin)
    return {"p_for": p_for, "p_against": p_against, "p_equal": equal}


def within(d: np.ndarray, margin: float) -> float:
    """Two one-sided tests of a mean inside of the margin."""
    return max(sign_flip(d - margin, "less"), sign_flip(d + margin, "greater"))


def bound_tests(
    comparison: dict[str, Any], runs: list[Cell]
) -> dict[str, float | None]:
    """Of runs, which all have to keep it; of one number; of repetitions."""
    bound, margin = comparison["bound"], comparison.get("margin")
    if runs:
        worst = max(c["measures"][comparison["measure"]] for c in runs)
        return {
            "p_for": float(worst > bound),
            "p_against": float(worst <= bound),
        }
    d = np.array(comparison["values"]) - bound
    if len(d) > 1:
        return {
            "p_for": sign_flip(d, "less"),
            "p_against": sign_flip(d, "greater"),
        }
    close = margin is not None and abs(d[0]) <= margin
    return {
        "p_for": float(d[0] > 0 or close),
        "p_against": float(d[0] <= 0 or close),
        "p_equal": float(not close),
    }


def event_tests(
    comparison: dict[str, Any], first: list[Cell], second: list[Cell]
) -> dict[str, float | None]:
    """Of spike events: the larger of the pooled and the clustered p."""
    k1, t1 = counts(first)
    margin = comparison.get("margin")
    if not second:
        if comparison["expect"] == "zero":
            return {"p_for": 1.0, "p_against": 0.0} if k1.sum() else {}
        none = not k1.sum() and margin is not None
        p = (
            float(stats.poisson.cdf(0, margin * t1.sum() / 1000))
            if none
            else 1.0
        )
        return {"p_for": float(not k1.sum()), "p_against": p}
    k2, t2 = counts(second)
    share = t1.sum() / (t1.sum() + t2.sum())
    total = int(k1.sum() + k2.sum())
    pooled = {
        "less": float(stats.binom.cdf(k1.sum(), total, share)),
        "greater": float(stats.binom.sf(k1.sum() - 1, total, share)),
    }
    larger = {
        side: max(pooled[side], sign_flip(k1 / t1 - k2 / t2, side))
        for side in pooled
    }
    equal = None
    if margin is not None:
        equal = max(
            float(stats.poisson.cdf(k.sum(), margin * t.sum() / 1000))
            for k, t in ((k1, t1), (k2, t2))
        )
    order = (
        ("greater", "less")
        if comparison["expect"] == "higher"
        else ("less", "greater")
    )
    return {
        "p_for": larger[order[0]],
        "p_against": larger[order[1]],
        "p_equal": equal,
    }


def counts(runs: list[Cell]) -> tuple[np.ndarray, np.ndarray]:
    """Events and judged steps of runs."""
    return (
        np.array([c["measures"]["events_1000"] for c in runs]),
        np.array([c["measures"]["judged_1000"] for c in runs]),
    )


def differences(
    pairs: list[tuple[Cell, Cell]], measure: str, times: float = 1.0
) -> np.ndarray:
    """First minus ``times`` second; NaN is infinite, infinite ones equal."""
    found = []
    for pair in pairs:
        a, b = (c["measures"][measure] for c in pair)
        a, b = (math.inf if math.isnan(v) else v for v in (a, b))
        found.append(0.0 if a == times * b else a - times * b)
    return np.array(found)


def sign_flip(d: np.ndarray, side: str) -> float:
    """Share of the sign patterns with a sum at least as extreme."""
    if np.isinf(d).any():
        size = np.zeros(len(d))
        size[d != 0] = stats.rankdata(np.abs(d[d != 0]))
        d = np.sign(d) * size
    size = np.abs(d)
    patterns = np.arange(2 ** len(d))[:, None] >> np.arange(len(d))
    signs = 2 * (patterns & 1) - 1
    sums, seen, slack = signs @ size, d.sum(), 1e-12 * max(size.sum(), 1e-300)
    shares = {
        "less": float(np.mean(sums <= seen + slack)),
        "greater": float(np.mean(sums >= seen - slack)),
    }
    if side == "two-sided":
        return min(1.0, 2 * min(shares.values()))
    return shares[side]


def claim_p(
    verdict: dict[str, Any], tests: list[dict[str, Any]]
) -> tuple[float, float]:
    """Return the claim's p for and against, before Holm."""
    if not tests:
        return 1.0, 1.0
    against = [
        t["p_against"]
        for c, t in zip(verdict["comparisons"], tests, strict=True)
        if t.get("p_against") is not None
        and (c.get("num_seeds", SEEDS) >= SEEDS or t["p_against"] == 0)
    ]
    p_for = max(1.0 if t.get("p_for") is None else t["p_for"] for t in tests)
    return p_for, min(1.0, len(tests) * min(against, default=1.0))


def adjust(
    judged: list[tuple[dict[str, Any], list[dict[str, Any]]]],
) -> dict[str, tuple[float, float]]:
    """Holm's p for and against of the primary claims."""
    ids = [v["id"] for v, _ in judged]
    columns = []
    for p in np.array([claim_p(v, t) for v, t in judged]).reshape(-1, 2).T:
        order = np.argsort(p, kind="stable")
        factors = np.arange(len(p), 0, -1)
        steps_up = np.maximum.accumulate(np.minimum(1.0, factors * p[order]))
        column = np.empty(len(p))
        column[order] = steps_up
        columns.append(column)
    return {
        name: (float(columns[0][i]), float(columns[1][i]))
        for i, name in enumerate(ids)
    }


def label_of(
    verdict: dict[str, Any],
    tests: list[dict[str, Any]],
    p_for: float,
    p_against: float,
) -> str:
    """Return the verdict by the rules of the page."""
    if not tests:
        return "not testable here"
    if p_against <= ALPHA:
        return "contradicted"
    if any(c.get("num_seeds", SEEDS) < SEEDS for c in verdict["comparisons"]):
        return "undecided"
    if p_for <= ALPHA:
        return "reproduced"
    rest = [t for t in tests if (t.get("p_for") or 0.0) > ALPHA]
    equal = [t.get("p_equal") for t in rest]
    if rest and all(p is not None and p <= ALPHA for p in equal):
        return "no difference"
    return "undecided"


def rendered(values: list[float | None], kind: str, spec: str) -> str:
    """Values of seeds as a cell of a table."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if kind == "spread" and len(finite) == len(values) > 1:
        return f"{np.mean(finite):{spec}} ± {np.std(finite, ddof=1):{spec}}"
    texts = [
        "–"
        if v is None
        else "NaN"
        if math.isnan(v)
        else f"{v:{spec}}"
        if math.isfinite(v)
        else "∞"
        if v > 0
        else "−∞"
        for v in values
    ]
    return "–" if set(texts) == {"–"} else " / ".join(texts)


def rate_text(runs: list[Cell]) -> str:
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


def numbers_of(evidence: str) -> list[str]:
    """Return counts, mean differences and p-values in a claim's evidence."""
    return [
        *re.findall(r"[\d,]+ in [\d,]+ judged steps \([^)]*\)", evidence),
        *re.findall(r"[+-][\d.e+-]+ ± [\d.e+-]+(?=,)", evidence),
        *re.findall(r"\bp (\d+(?:\.\d+)?(?:e-\d+)?)", evidence),
    ]


def count_text(runs: list[Cell]) -> str:
    """``"1 in 14,000 judged steps (0 / 1)"``."""
    events, judged = counts(runs)
    shown = " / ".join(f"{n:,.0f}" for n in events)
    return f"{events.sum():,.0f} in {judged.sum():,.0f} judged steps ({shown})"


def mean_text(d: np.ndarray) -> str:
    """``"-0.0073 ± 0.0039"``."""
    return f"{np.mean(d):+.4g} ± {np.std(d, ddof=1):.2g}"


def same(seen: Any, expected: Any) -> bool:
    """Equal; numbers up to what a line keeps of them, 7 digits."""
    if isinstance(seen, list) and isinstance(expected, list):
        return len(seen) == len(expected) and all(map(same, seen, expected))
    if isinstance(seen, (int, float)) and isinstance(expected, (int, float)):
        return math.isclose(seen, expected, rel_tol=1e-6, abs_tol=1e-12) or (
            math.isnan(seen) and math.isnan(expected)
        )
    return bool(seen == expected)
