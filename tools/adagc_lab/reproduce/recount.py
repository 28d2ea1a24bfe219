# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs read, measured, paired and tested again, for :mod:`.verify`.

It shares nothing with the code that wrote the results and their pages: NumPy,
SciPy and the standard library alone.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import stats

NO_RUNS = ("creep", "gpu", "mutation", "price")
NOT_CONFIG = {"train.seed", "data.seed", "train.max_steps"}
_ADAGC = {"lambda_rel": 1.04, "beta": 0.99, "lambda_abs": 1, "t_start": 100}
CLIP_DEFAULTS: dict[str, dict[str, float]] = {
    "adagc": _ADAGC,
    "global_adagc": _ADAGC,
    "global_norm": {"lambda_abs": 1},
    "tensor_wise": {"lambda_abs": 1},
    "value": {"lambda_abs": 0.001},
}
WINDOW, SEEDS = 101, 8
EVENTS, MASS, PRICE = "spike_events", "spike_mass", "end_loss"
REPLAYED, WRONG = "replayed_percent", "wrong_percent"
OF_ROWS = {"name", "lambda_abs", "init", "init_value"}
DERIVED = {MASS, PRICE, "mean_loss", "excess_area_global"}
"""What lines lack."""


class StoredRun:
    """The line of a run or a timing, below its experiment's line."""

    def __init__(self, file: str, part: dict[str, Any], line: Any) -> None:
        self.skip: int = part["skip_steps"]
        self.seed: int = line["seed"]
        self.place = file, part["name"], line["method"], self.seed
        self.name = "/".join(map(str, self.place))
        self.is_twin = bool(line.get("is_clean_twin"))
        self.has_diverged = line.get("status") == "diverged"
        self.measures = {k: float(v) for k, v in line["measures"].items()}
        self.series: dict[str, Any] = line.get("series", {})
        cpu: str = line.get("machine", {}).get("processor", "")
        self.cpu = cpu or "recorded before"
        self.rank = int(self.measures.get("steps", 0)), cpu
        """A timing has no steps."""
        key = line.get("key", "")
        self.id: str = f"{key} on {cpu}" if cpu else key
        config = part["config"] | line.get("config", {})
        rest = {k: v for k, v in config.items() if k not in NOT_CONFIG}
        clip = {k[5:]: rest.pop(k) for k in [*rest] if k[:5] == "clip."}
        defaults = CLIP_DEFAULTS.get(str(clip.get("name")), {}).items()
        self.clip = dict(item for item in clip.items() if item not in defaults)
        self.setting = json.dumps(rest, sort_keys=True)
        self.config_id = json.dumps(self.clip, sort_keys=True) + self.setting
        self.is_constant = config.get("schedule.kind") == "constant"
        self.has_faults = bool(config.get("faults"))

    @functools.cached_property
    def loss(self) -> np.ndarray:
        """Losses of all steps."""
        packed = self.series["loss"]
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


class Runs:
    """Every line of a folder, and one of the copies of each run."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[StoredRun] = []
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.read_text("utf-8").splitlines():
                fields = json.loads(line)
                if path.stem in NO_RUNS or fields["kind"] == "target":
                    continue
                if fields["kind"] == "experiment":
                    part = fields
                else:
                    self.lines.append(StoredRun(path.stem, part, fields))
        runs = [run for run in self.lines if run.rank[0]]
        runs.sort(key=lambda run: run.is_twin)
        self._by_id = {run.id: run for run in reversed(runs)}
        self.runs = [*self._by_id.values()]
        self.by_config: dict[str, list[StoredRun]] = {}
        for run in self.runs:
            self.by_config.setdefault(run.config_id, []).append(run)

    def of(self, ids: Iterable[str]) -> list[StoredRun]:
        """Return the runs of these ids; a ValueError names one without."""
        unknown = [name for name in ids if name not in self._by_id]
        if unknown:
            raise ValueError(f"report.json names {unknown[0]!r}: no such run")
        return [self._by_id[name] for name in ids]

    def alike(self, own: StoredRun) -> list[StoredRun]:
        """Return runs of its config, of any length if that may be."""
        return [
            run
            for run in self.by_config[own.config_id]
            if own.is_constant or run.rank[0] == own.rank[0]
        ]

    def pairs(
        self, own: StoredRun, other: StoredRun, measure: str
    ) -> list[Pair]:
        """Every seed's and processor's longest pair of two configs."""
        name = "events_1000" if measure == EVENTS else measure
        return paired(self.alike(own), self.alike(other), name)


def paired(
    own: list[StoredRun], others: list[StoredRun], measure: str
) -> list[Pair]:
    """Every seed's and processor's longest pair that has a measure."""
    both = sorted(itertools.product(own, others), key=lambda p: p[0].rank)
    found = {
        (a.seed, a.cpu): (a, b)
        for a, b in having(both, measure)
        if (a.seed, a.rank) == (b.seed, b.rank)
    }
    return [found[key] for key in sorted(found)]


def wrong_percent(runs: Runs) -> list[float]:
    """How often the rule of who is helped is wrong, by seed, in percent.

    AdaGC's mean loss from step 300 on is below GlobalGC's where, replayed over
    the latter's norms before, it would clip less than 90% of the tensors.
    """
    arms: dict[tuple[Any, ...], list[StoredRun]] = {}
    for own in runs.by_config.values():
        clip, setting = own[0].clip, own[0].setting
        if {*clip} <= {"name", "lambda_abs"} and not own[0].has_faults:
            key = setting, clip.get("lambda_abs"), clip["name"]
            arms[key] = [run for run in own if run.series]
    found: dict[int, list[float]] = {}
    for key, own in arms.items():
        others = arms.get((*key[:2], "global_norm"), [])
        for a, b in paired(own, others, "final_loss"):
            if key[2] == "adagc" and REPLAYED in b.measures:
                is_lower = a.loss[300:].mean() < b.loss[300:].mean()
                is_wrong = is_lower != (b.measures[REPLAYED] < 90)
                found.setdefault(a.seed, []).append(100.0 * is_wrong)
    return [float(np.mean(found[seed])) for seed in sorted(found)]


def possible_rows(runs: Runs) -> Iterator[tuple[StoredRun, StoredRun, int]]:
    """Every AdaGC, of any start, and GlobalGC that differ in the clip alone.

    With each number of steps.
    """
    arms: dict[tuple[str, str], list[StoredRun]] = {}
    for own in runs.by_config.values():
        first = next((run for run in own if not run.is_twin), None)
        if first and {*first.clip} <= OF_ROWS:
            name = first.clip["name"]
            arms.setdefault((first.setting, name), []).append(first)
    for (setting, name), adagc in arms.items():
        others = arms.get((setting, "global_norm"), [])
        for pair in itertools.product(adagc, others) if name == "adagc" else ():
            base, low = (run.clip.get("lambda_abs", 1.0) for run in pair)
            found = runs.pairs(*pair, "final_loss")
            for steps, alike in by_length(found).items():
                if low in (base, 0.1) and num_seeds(alike) >= SEEDS:
                    yield *pair, steps


def by_length(pairs: list[Pair]) -> dict[int, list[Pair]]:
    """Pairs by their number of steps."""
    found: dict[int, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair[0].rank[0], []).append(pair)
    return found


def longest(pairs: list[Pair]) -> list[Pair]:
    """Each seed's pairs that have the most steps."""
    steps = sorted((pair[0].seed, pair[0].rank[0]) for pair in pairs)
    most = dict(steps)
    return [p for p in pairs if p[0].rank[0] == most[p[0].seed]]


def once(pairs: list[Pair]) -> list[Pair]:
    """One pair a seed, by the rule made after the runs."""
    for some in ([p for p in pairs if p[0].series and p[1].series], pairs):
        ranked = sorted(some, key=lambda pair: pair[0].rank)
        best = {pair[0].seed: pair for pair in ranked}
        if len(best) >= SEEDS:
            break
    return [best[seed] for seed in sorted(best)]


def recounted(
    lines: list[StoredRun],
) -> Iterator[tuple[StoredRun, dict[str, float]]]:
    """Every line with losses, and its measures that follow from them."""
    series = [run for run in lines if run.series]
    twins = {(*run.place, run.cpu): run for run in series if run.is_twin}
    own_clean = {
        twin.place[:2] for twin in twins.values() if twin.place[2] == "GlobalGC"
    }
    clean = {
        without_faults(run): run
        for run in series
        if run.clip == {"name": "global_norm"} and not run.has_faults
    }
    for run in series:
        found = from_losses(run)
        if run.series["faults"]:
            file, experiment, method, seed = run.place
            own, reference = (
                twins.get((file, experiment, name, seed, run.cpu))
                for name in (method, "GlobalGC")
            )
            found |= excess(run, own) if own else {}
            if (file, experiment) not in own_clean:
                reference = clean.get(without_faults(run))
            if reference:
                area = excess(run, reference)["excess_area"]
                found["excess_area_global"] = area
        yield run, found


def without_faults(run: StoredRun) -> tuple[Any, ...]:
    """What a run and one without its faults have in common, but the clip."""
    config = json.loads(run.setting)
    config.pop("faults", None)
    return json.dumps(config, sort_keys=True), run.seed, run.rank


def from_losses(run: StoredRun) -> dict[str, float]:
    """Measures that follow from a line's own losses."""
    loss = run.loss[run.kept]
    judged = loss[int(run.kept[: run.skip].sum()) :]
    found = {"final_loss": float(run.loss[-100:][run.kept[-100:]].mean())}
    if run.has_diverged or not np.isfinite(judged).all():
        found |= dict.fromkeys((MASS, PRICE, "mean_loss"), math.inf)
    else:
        found[PRICE] = float(np.median(judged[-500:]))
        found["mean_loss"] = float(judged.mean())
        if len(judged) > 2 * WINDOW:
            rise = judged[WINDOW:] - medians(judged)
            above = rise[WINDOW:] - 5 * medians(abs(rise))
            found[MASS] = math.fsum(above[above > 0])
    for window in (1000, 200):
        spikes, num_judged = spike_steps(judged, window)
        if run.has_diverged and not len(spikes):
            names = ("spikes", "events", "judged")
            found |= {f"{name}_{window}": 1 for name in names}
        elif num_judged:
            found[f"judged_{window}"] = num_judged
            found[f"spikes_{window}"] = len(spikes)
            found[f"events_{window}"] = len(grouped(spikes))
            found[f"score_{window}"] = 100 * len(spikes) / len(loss)
    return found


def medians(values: np.ndarray) -> np.ndarray:
    """Median of the window before each value."""
    windows = sliding_window_view(values, WINDOW)[:-1]
    found: np.ndarray = np.partition(windows, WINDOW // 2)[:, WINDOW // 2]
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
    size = min(len(twin.loss), len(run.loss))
    above = np.full(len(twin.loss) if run.has_diverged else size, np.inf)
    is_judged = np.isfinite(twin.loss[: len(above)])
    is_judged[:size] &= run.kept[:size]
    is_judged[: run.series["faults"][0][0]] = False
    is_known = np.isfinite(run.loss[:size])
    above[:size][is_known] = (run.loss[:size] - twin.loss[:size])[is_known]
    above[~is_judged] = -np.inf
    groups = grouped(np.flatnonzero(above > 0.2))
    peaks = [above[g[0] : g[-1] + 1].max() for g in groups]
    return {
        "excess_area": float(above[is_judged].sum()),
        "excess_worst": float(above.max()),
        "events_above_0.2": len(peaks),
        "events_above_0.5": sum(peak > 0.5 for peak in peaks),
    }


# Statistics: a seed counts once, whatever processors it ran on.


def counts(runs: Iterable[StoredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Events and judged steps of every seed."""
    found: dict[int, np.ndarray] = {}
    for run in runs:
        names = ("events_1000", "judged_1000")
        own = np.array([run.measures[name] for name in names])
        found[run.seed] = found.get(run.seed, 0) + own
    events, judged = np.array([found[seed] for seed in sorted(found)]).T
    return events, judged


def total(runs: Iterable[StoredRun]) -> tuple[float, float]:
    """Events and judged steps of all."""
    events, judged = counts(runs)
    return events.sum(), judged.sum()


def num_seeds(pairs: Iterable[Pair]) -> int:
    return len({run.seed for run, _ in pairs})


def differences(
    pairs: list[Pair], measure: str, times: float = 1
) -> np.ndarray:
    """First minus ``times`` second by seed; of masses their logarithms."""
    found: dict[int, list[float]] = {}
    for pair in pairs:
        a, b = (run.measures[measure] for run in pair)
        a, b = (math.inf if math.isnan(v) else v for v in (a, times * b))
        if measure == MASS and times == 0:
            a, b = (math.log(max(r.measures[MASS], 0.01)) for r in pair)
        found.setdefault(pair[0].seed, []).append(0.0 if a == b else a - b)
    return np.array([np.mean(found[seed]) for seed in sorted(found)])


log_ratios = functools.partial(differences, measure=MASS, times=0)


def sign_flip(d: np.ndarray) -> tuple[float, float]:
    """Share of the sign patterns with a sum as low, and as high."""
    if np.isinf(d).any():
        d = np.sign(d) * (stats.rankdata(abs(d)) - np.sum(d == 0))
    halves = []  # every sum is one of each half's
    for half in (d[::2], d[1::2]):
        sums = np.zeros(1)
        for value in half:
            sums = np.concatenate([sums + value, sums - value])
        halves.append(sums)
    one, other = halves[0], np.sort(halves[1])
    seen, slack = d.sum(), 1e-12 * max(abs(d).sum(), 1e-300)
    low = np.searchsorted(other, seen + slack - one, "right").sum()
    lower = np.searchsorted(other, seen - slack - one, "left").sum()
    return low / 2.0 ** len(d), 1 - lower / 2.0 ** len(d)


def ratio_limits(pairs: list[Pair]) -> list[float]:
    """The ratio of two rates with exact 95% limits."""
    (k1, t1), (k2, t2) = map(total, zip(*pairs, strict=True))
    if not k1 + k2:
        return [math.nan] * 3
    shares = stats.binomtest(int(k1), int(k1 + k2)).proportion_ci()
    return [
        float(t2 / t1 * s / (1 - s)) if s < 1 else math.inf
        for s in (k1 / (k1 + k2), *shares)
    ]


def mean_limits(d: np.ndarray) -> list[float]:
    """Mean and Student's limits; rounded, as a tie is one everywhere."""
    limits = stats.ttest_1samp(d, 0).confidence_interval()
    return [float(f"{x:.9g}") for x in (d.mean(), *limits)]


def having(pairs: list[Pair], measure: str) -> list[Pair]:
    """Pairs of which both runs have a measure."""
    return [p for p in pairs if all(measure in r.measures for r in p)]


def change(pairs: list[Pair], measure: str) -> str:
    """The reference's mean, then the method's; of events the sums."""
    sides = [*zip(*pairs, strict=True)]
    if measure == EVENTS:
        new, old = (total(side)[0] for side in sides)
        return f"{old:.0f} → {new:.0f}"
    new, old = (
        math.fsum(run.measures[measure] for run in side) / len(pairs)
        for side in sides
    )
    return f"{old:.3g} → {new:.3g}"


def cell_text(measure: str, pairs: list[Pair], num: int) -> str:
    """A measure of a row: "baseline → method", or the mean difference."""
    if not pairs:
        return "–"
    own = num_seeds(pairs)
    few = f" [{own} seeds]" if own < num else ""
    if measure == EVENTS:
        return change(pairs, EVENTS) + few
    if measure == MASS:
        mean, low, high = map(math.exp, mean_limits(log_ratios(pairs)))
        limits = f"(× {mean:.2g}, {low:.2g}-{high:.2g})"
        return f"{change(pairs, MASS)} {limits}{few}"
    mean, low, high = mean_limits(differences(pairs, measure))
    spec = "+.1f" if "area" in measure else "+.3f"
    return f"{mean:{spec}} ({low:{spec}}, {high:{spec}}){few}"


def beside(pairs: list[Pair], measures: Sequence[str]) -> str:
    """What stands beside a gain: its mass and its price."""
    text = ""
    for measure in measures:
        groups = by_length(having(pairs, measure))
        if groups and measure == MASS:
            groups = {0: having(pairs, measure)}
        for steps in sorted(groups):
            known = groups[steps]
            at = f" at {steps:,} steps" if len(groups) > 1 else ""
            if measure == MASS:
                d, what = log_ratios(known), f"mass {change(known, MASS)}"
            else:
                d = differences(known, measure)
                what = f"end {float(f'{d.mean():.9g}'):+.3g} nat{at}"
            few = f" ({len(known)} pairs)" * (len(known) < len(pairs))
            p = min(1.0, 2 * min(sign_flip(d)))
            text += f"; {what}{few}, p {p:.2g}"
    return text
