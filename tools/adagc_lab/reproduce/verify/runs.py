# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The runs in ``results/``, which belong together, what their losses give."""

from __future__ import annotations

import base64
import functools
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

NO_RUNS = {"creep.jsonl", "gpu.jsonl", "mutation.jsonl", "versions.jsonl"}
NOT_CONFIG = {"train.seed", "data.seed", "train.max_steps"}
_ADAGC = {"lambda_rel": 1.04, "beta": 0.99, "lambda_abs": 1, "t_start": 100}
CLIP_DEFAULTS: dict[str, dict[str, float]] = {
    "adagc": _ADAGC,
    "global_adagc": _ADAGC,
    "global_norm": {"lambda_abs": 1},
    "tensor_wise": {"lambda_abs": 1},
    "value": {"lambda_abs": 0.001},
}
MASS_WINDOW = 101
DERIVED = {"spike_mass", "excess_area_global"}
"""Measures that older lines lack."""

EVENTS = "spike_events"
"""The measure that is a rate: ``events_1000`` over ``judged_1000``."""

Check = tuple[str, Any, Any]
"""What is compared, the value that stands there, the recomputed one."""


class StoredRun:
    """The line of a run or a timing, below its experiment's line."""

    def __init__(
        self, file: str, part: dict[str, Any], line: dict[str, Any]
    ) -> None:
        self.title: str = part["title"]
        self.skip: int = part["skip_steps"]
        self.method: str = line["method"]
        self.seed: int = line["seed"]
        self.place = file, part["name"], self.method, self.seed
        self.name = "/".join(map(str, self.place))
        self.is_twin = bool(line.get("is_clean_twin"))
        self.has_diverged = line.get("status") == "diverged"
        self.measures = {k: float(v) for k, v in line["measures"].items()}
        self.steps = int(self.measures.get("steps", 0))
        """0 for a timing."""
        self.series: dict[str, Any] = line.get("series", {})
        cpu: str = line.get("machine", {}).get("processor", "")
        self.rank = self.steps, cpu
        key = line.get("key", "")
        self.id: str = f"{key} on {cpu}" if cpu else key
        config = part["config"] | line.get("config", {})
        self.is_constant = config.get("schedule.kind") == "constant"
        defaults = CLIP_DEFAULTS.get(str(config.get("clip.name")), {})
        clip = {f"clip.{name}": value for name, value in defaults.items()}
        kept = {
            key: value
            for key, value in config.items()
            if key not in NOT_CONFIG and (key, value) not in clip.items()
        }
        self.config_id = json.dumps(kept, sort_keys=True)

    @functools.cached_property
    def loss(self) -> np.ndarray:
        """Losses of all steps; ValueError if they are damaged."""
        packed = self.series["loss"]
        if packed["encoding"] != "log16-delta-zlib-base64":
            raise ValueError(f"unknown encoding {packed['encoding']!r}")
        raw = zlib.decompress(base64.b64decode(packed["data"]))
        high, low = np.frombuffer(raw, np.uint8).reshape(2, -1)
        codes = np.cumsum(256 * high.astype(np.int64) + low) % 65_536
        span = packed["high"] - packed["low"]
        loss = np.exp(packed["low"] + codes * (span / 65_533))
        loss[codes == 65_534], loss[codes == 65_535] = np.inf, np.nan
        return loss

    @functools.cached_property
    def kept(self) -> np.ndarray:
        """Whether each step's loss says something about the model."""
        kept = np.ones(len(self.loss), bool)
        for first, last in self.series["left_out"]:
            kept[first : last + 1] = False
        return kept


Pair = tuple[StoredRun, StoredRun]


def read_runs(folder: Path) -> Iterator[StoredRun]:
    """Every line of a run or a timing in a folder."""
    for path in sorted(folder.glob("*.jsonl")):
        if path.name in NO_RUNS:
            continue
        part: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            if fields["kind"] == "experiment":
                part = fields
            if fields["kind"] == "cell":
                yield StoredRun(path.stem, part, fields)


class Runs:
    """Every line of a folder, and one of the copies of each run."""

    def __init__(self, folder: Path) -> None:
        self.lines = [*read_runs(folder)]
        runs = [run for run in self.lines if run.steps]
        runs.sort(key=lambda run: run.is_twin)
        self._by_id = {run.id: run for run in reversed(runs)}
        self.runs = [*self._by_id.values()]

    def of(self, ids: Iterable[str]) -> list[StoredRun]:
        """Return the runs of these ids."""
        return [self._by_id[name] for name in ids]

    def check_copies(self) -> Iterator[Check]:
        """Compare the measures of a run that several files hold."""
        for run in filter(lambda run: run.steps, self.lines):
            known = self._by_id[run.id].measures
            for measure, value in run.measures.items():
                if not measure.endswith("_ms"):
                    name = f"{run.name}: copies' {measure}"
                    yield name, value, known.get(measure, value)

    def timed(self, title: str) -> dict[str, list[StoredRun]]:
        """Return the timings of an experiment by method."""
        found: dict[str, list[StoredRun]] = {}
        for run in self.lines:
            if run.title == title and not run.steps:
                found.setdefault(run.method, []).append(run)
        return found

    def alike(self, own: StoredRun) -> list[StoredRun]:
        """Return runs of its config, of any length if that may be."""
        return [
            run
            for run in self.runs
            if run.config_id == own.config_id
            and (own.is_constant or run.steps == own.steps)
        ]

    def longest(self, own: StoredRun) -> list[str]:
        """Return the id of the best run of every seed of a config."""
        runs = sorted(self.alike(own), key=lambda run: run.rank)
        best = {run.seed: run for run in runs}
        return [best[seed].id for seed in sorted(best)]

    def pairs(
        self, first: list[StoredRun], second: list[StoredRun], measure: str
    ) -> list[Pair]:
        """Return every seed's best pair, whatever the rows show."""
        name = "events_1000" if measure == EVENTS else measure
        sides = [
            [run for run in self.alike(side[0]) if name in run.measures]
            for side in (first, second)
        ]
        stored = best_pairs([[r for r in side if r.series] for side in sides])
        return stored if len(stored) >= 8 else best_pairs(sides)


def best_pairs(sides: list[list[StoredRun]]) -> list[Pair]:
    """Return every seed's longest pair of one length and processor."""
    found = {
        a.seed: (a, b)
        for a in sorted(sides[0], key=lambda run: run.rank)
        for b in sides[1]
        if (a.seed, a.rank) == (b.seed, b.rank)
    }
    return [found[seed] for seed in sorted(found)]


def check_losses(lines: list[StoredRun]) -> Iterator[Check]:
    """Compare what follows from a line's losses; add what older lines lack."""
    series = [run for run in lines if run.series]
    twins = {(*run.place, run.rank[1]): run for run in series if run.is_twin}
    for run in series:
        found = from_losses(run)
        if run.series["faults"]:
            file, experiment, method, seed = run.place
            own, reference = (
                twins.get((file, experiment, name, seed, run.rank[1]))
                for name in (method, "GlobalGC")
            )
            if own:
                found |= excess(run, own)
            if reference:
                area = excess(run, reference)["excess_area"]
                found["excess_area_global"] = area
        for measure, value in found.items():
            if measure in run.measures or measure not in DERIVED:
                stored = run.measures.get(measure)
                yield f"{run.name} {measure}", stored, value
        run.measures |= {name: found[name] for name in DERIVED & {*found}}


def from_losses(run: StoredRun) -> dict[str, float]:
    """Measures that follow from a line's own losses."""
    loss = run.loss[run.kept]
    judged = loss[int(run.kept[: run.skip].sum()) :]
    found = {"final_loss": float(run.loss[-100:][run.kept[-100:]].mean())}
    if run.has_diverged or not np.isfinite(judged).all():
        found["spike_mass"] = math.inf
    elif len(judged) > 2 * MASS_WINDOW:
        rise = judged[MASS_WINDOW:] - medians(judged)
        above = rise[MASS_WINDOW:] - 5 * medians(abs(rise))
        found["spike_mass"] = math.fsum(above[above > 0])
    for window in (1000, 200):
        spikes, num_judged = spike_steps(judged, window)
        if run.has_diverged and not len(spikes):
            names = ("spikes", "events", "judged")
            found |= {f"{name}_{window}": 1 for name in names}
        elif num_judged:
            found |= {
                f"judged_{window}": num_judged,
                f"spikes_{window}": len(spikes),
                f"events_{window}": len(grouped(spikes)),
                f"score_{window}": 100 * len(spikes) / len(loss),
            }
    return found


def medians(values: np.ndarray) -> np.ndarray:
    """Median of the window before each value."""
    windows = sliding_window_view(values, MASS_WINDOW)[:-1]
    middle = MASS_WINDOW // 2
    found: np.ndarray = np.partition(windows, middle)[:, middle]
    return found


def spike_steps(loss: np.ndarray, window: int) -> tuple[np.ndarray, int]:
    """Return steps 10 deviations off the window, and how many are judged."""
    is_finite = np.isfinite(loss)
    finite, spikes = np.flatnonzero(is_finite), np.flatnonzero(~is_finite)
    num_judged = max(0, len(finite) - window) + len(spikes)
    if len(finite) > window:
        before = sliding_window_view(loss[finite[:-1]], window)
        distance = abs(loss[finite[window:]] - before.mean(-1))
        far = (distance > 0) & (distance >= 10 * before.std(-1, ddof=1))
        spikes = np.union1d(spikes, finite[window:][far])
    return spikes, num_judged


def grouped(steps: np.ndarray) -> list[np.ndarray]:
    """Split increasing steps where more than 10 lie between two."""
    parts = np.split(steps, np.flatnonzero(np.diff(steps) > 10) + 1)
    return parts if len(steps) else []


def excess(run: StoredRun, twin: StoredRun) -> dict[str, float]:
    """Area, largest value and events of the loss over its twin's."""
    size = len(twin.loss)
    if not run.has_diverged:
        size = min(size, len(run.loss))
    own, clean = run.loss[:size], twin.loss[:size]
    missing = (0, size - len(own))
    own = np.pad(own, missing, constant_values=np.nan)
    kept = np.pad(run.kept[:size], missing, constant_values=True)
    above = np.where(np.isfinite(own), own - clean, np.inf)
    judged = np.isfinite(clean) & kept
    judged[: run.series["faults"][0][0]] = False
    above[~judged] = -np.inf
    groups = grouped(np.flatnonzero(above > 0.2))
    peaks = [above[g[0] : g[-1] + 1].max() for g in groups]
    return {
        "excess_area": float(above[judged].sum()),
        "excess_worst": float(above.max()),
        "events_above_0.2": len(peaks),
        "events_above_0.5": sum(peak > 0.5 for peak in peaks),
    }
