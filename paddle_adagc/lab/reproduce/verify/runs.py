# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The runs in ``results/``, which belong together, what their losses give."""

from __future__ import annotations

import base64
import bisect
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

NO_CELLS = {"gpu.jsonl", "mutation.jsonl", "soak.jsonl", "versions.jsonl"}
NOT_CONFIG = {"train.seed", "data.seed", "train.max_steps"}
_ADAGC = {"lambda_rel": 1.04, "beta": 0.99, "lambda_abs": 1, "t_start": 100}
CLIP_DEFAULTS: dict[str, dict[str, float]] = {
    "adagc": _ADAGC,
    "global_adagc": _ADAGC,
    "global_norm": {"lambda_abs": 1},
    "tensor_wise": {"lambda_abs": 1},
    "value": {"lambda_abs": 0.001},
}

StoredRun = dict[str, Any]
Check = tuple[str, Any, Any]
"""What is compared, the value that stands there, the recomputed one."""


MASS_WINDOW = 101


class Runs:
    """Every cell line of a folder, and one of the copies of each run."""

    def __init__(self, folder: Path) -> None:
        self.lines = [*read_runs(folder)]
        runs = [c for c in self.lines if steps(c)]
        self._first = {copy_of(c): c for c in reversed(runs)}
        self.runs = [*self._first.values()]
        own_first = sorted(self.runs, key=lambda c: c["twin"])
        self._by_id = {run_id(c): c for c in reversed(own_first)}

    def of(self, ids: Iterable[str]) -> list[StoredRun]:
        """Return the runs of these ids."""
        return [self._by_id[name] for name in ids]

    def check_copies(self) -> Iterator[Check]:
        """Compare the measures of a run that several files hold."""
        for cell in filter(steps, self.lines):
            first = self._first[copy_of(cell)]
            name = f"{cell['file']}, {cell['method']} {cell['seed']}"
            for measure, value in cell["measures"].items():
                if not measure.endswith("_ms"):
                    other = first["measures"].get(measure, value)
                    yield f"{name}: copies' {measure}", value, other

    def timed(self, title: str) -> dict[str, list[StoredRun]]:
        """Return the timings of an experiment by method."""
        cells = [c for c in self.lines if c["title"] == title and not steps(c)]
        methods = dict.fromkeys(c["method"] for c in cells)
        return {m: [c for c in cells if c["method"] == m] for m in methods}

    def longest(self, own: StoredRun) -> list[str]:
        """Return the id of the best run of every seed of a config."""
        best = {
            cell["seed"]: cell
            for cell in sorted(self.runs, key=rank)
            if is_one_config(own, cell)
        }
        return [run_id(best[seed]) for seed in sorted(best)]

    def pairs(
        self, first: list[StoredRun], second: list[StoredRun], measure: str
    ) -> list[tuple[StoredRun, StoredRun]]:
        """Return every seed's best pair, whatever the rows show."""
        if not (first and second) or not steps(first[0]):
            by_seed = {c["seed"]: c for c in second}
            return [
                (c, by_seed[c["seed"]]) for c in first if c["seed"] in by_seed
            ]
        name = measure.replace("spike_events", "events_1000")
        ones, others = (
            [
                c
                for c in self.runs
                if is_one_config(side[0], c) and name in c["measures"]
            ]
            for side in (first, second)
        )
        stored = best_pairs(
            [c for c in ones if c.get("series")],
            [c for c in others if c.get("series")],
        )
        found = stored if len(stored) >= 8 else best_pairs(ones, others)
        return [
            pair
            for pair in found
            if name == measure
            or all(c["measures"]["judged_1000"] for c in pair)
        ]


def best_pairs(
    ones: Iterable[StoredRun], others: Iterable[StoredRun]
) -> list[tuple[StoredRun, StoredRun]]:
    """Return every seed's longest pair of one length and processor."""
    found: dict[int, tuple[StoredRun, StoredRun]] = {}
    for a, b in itertools.product(ones, others):
        if (a["seed"], steps(a), cpu(a)) != (b["seed"], steps(b), cpu(b)):
            continue
        known = found.get(a["seed"])
        if known is None or rank(a) > rank(known[0]):
            found[a["seed"]] = (a, b)
    return [found[seed] for seed in sorted(found)]


def read_runs(folder: Path) -> Iterator[StoredRun]:
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


def steps(cell: StoredRun) -> int:
    """Length of a run, 0 for a timing."""
    return int(cell["measures"].get("steps", 0))


_VECTORS = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"))


def cpu(cell: StoredRun) -> str:
    """Its processor's model and vectors, "" if the line has none."""
    machine = cell.get("machine", {})
    if "instruction_sets" not in machine:
        return ""
    model, sets = str(machine["processor"]), machine["instruction_sets"]
    for flag, name in _VECTORS:
        if flag in sets:
            return model.removesuffix(f" ({name})") + f" ({name})"
    return model


def run_id(cell: StoredRun) -> str:
    """Return a run's key, and its processor if the line has one."""
    return " on ".join(filter(None, (cell["key"], cpu(cell))))


def rank(cell: StoredRun) -> tuple[int, str]:
    """Order of the runs of a seed: by length, then with a processor."""
    return steps(cell), cpu(cell)


def copy_of(cell: StoredRun) -> tuple[str, bool]:
    """Return what the copies of a run in several files share."""
    return run_id(cell), cell["twin"]


def is_one_config(first: StoredRun, second: StoredRun) -> bool:
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


def check_losses(lines: list[StoredRun]) -> Iterator[Check]:
    """Compare the measures that follow from a line's losses and its twin's."""
    series = [cell for cell in lines if cell.get("series")]
    twins = {place(cell): cell for cell in series if cell["twin"]}
    for cell in series:
        clean = None if cell["twin"] else twins.get(place(cell))
        for measure, value in from_series(cell, clean).items():
            name = f"{'/'.join(map(str, place(cell)))} {measure}"
            yield name, cell["measures"].get(measure), value
        stored = cell["stored_mass"]
        if stored is not None:
            name = f"{'/'.join(map(str, place(cell)))} spike_mass"
            yield name, stored, cell["measures"].get("spike_mass")


def derive(lines: list[StoredRun]) -> None:
    """Add the measures that older lines lack: mass, area over GlobalGC."""
    clean = {
        (c["file"], c["experiment"], c["seed"], cpu(c)): c
        for c in lines
        if c["twin"] and c["method"] == "GlobalGC" and c.get("series")
    }
    for cell in lines:
        cell["stored_mass"] = cell["measures"].pop("spike_mass", None)
        if not cell.get("series"):
            continue
        loss = decode(cell["series"]["loss"])
        bad = covered(cell["series"]["left_out"])
        kept = [
            x for i, x in enumerate(loss) if i not in bad and i >= cell["skip"]
        ]
        if cell.get("status") == "diverged" or not np.isfinite(kept).all():
            cell["measures"]["spike_mass"] = math.inf
        elif len(kept) > 2 * MASS_WINDOW:
            cell["measures"]["spike_mass"] = mass(kept)
        key = (cell["file"], cell["experiment"], cell["seed"], cpu(cell))
        if key in clean and cell["series"]["faults"]:
            other = decode(clean[key]["series"]["loss"])
            area = excess(cell, loss, other, bad)["excess_area"]
            cell["measures"]["excess_area_global"] = area or 0.0


def mass(loss: list[float]) -> float:
    """Loss above the running median plus 5 running MAD."""
    size = MASS_WINDOW
    rise = [x - m for x, m in zip(loss[size:], medians(loss), strict=True)]
    spreads = medians([abs(x) for x in rise])
    above = (x - 5 * d for x, d in zip(rise[size:], spreads, strict=True))
    return math.fsum(x for x in above if x > 0)


def medians(values: list[float]) -> list[float]:
    """Median of the window before each value."""
    window, found = sorted(values[:MASS_WINDOW]), []
    for old, new in zip(values, values[MASS_WINDOW:], strict=False):
        found.append(window[MASS_WINDOW // 2])
        window.pop(bisect.bisect_left(window, old))
        bisect.insort(window, new)
    return found


def place(cell: StoredRun) -> tuple[str, str, str, int]:
    """Return what a run shares with its clean twin."""
    return cell["file"], cell["experiment"], cell["method"], cell["seed"]


def from_series(
    cell: StoredRun, clean: StoredRun | None
) -> dict[str, float | None]:
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
    if len(finite) > window:
        before = sliding_window_view(loss[finite[:-1]], window)
        distance = abs(loss[finite[window:]] - before.mean(-1))
        far = (distance > 0) & (distance >= 10 * before.std(-1, ddof=1))
        spikes += finite[window:][far].tolist()
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
    cell: StoredRun, loss: np.ndarray, clean: np.ndarray, bad: set[int]
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
