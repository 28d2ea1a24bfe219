# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""An independent check of the results' pages, with separate code.

It recomputes, from the lines in ``results/``, every measure that follows from
stored losses, every comparison with GlobalGC, every p and every verdict. It
shares nothing with the code that wrote them: NumPy, SciPy and the standard
library alone. ``results/report.json`` says which runs stand in which row and
behind which test; whether these are all runs of that config, and all
comparisons that the runs allow, is checked, too. It fails on a gain without its
price, on a zero in both arms that stands alone, and on a verdict that a later
rule changes without saying so.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import stats

NO_RUNS = ("creep", "gpu", "mutation", "soak", "versions")
NOT_CONFIG = {"train.seed", "data.seed", "train.max_steps"}
_ADAGC = {"lambda_rel": 1.04, "beta": 0.99, "lambda_abs": 1, "t_start": 100}
CLIP_DEFAULTS: dict[str, dict[str, float]] = {
    "adagc": _ADAGC,
    "global_adagc": _ADAGC,
    "global_norm": {"lambda_abs": 1},
    "tensor_wise": {"lambda_abs": 1},
    "value": {"lambda_abs": 0.001},
}
WINDOW = 101
DERIVED = {"spike_mass", "end_loss", "mean_loss", "excess_area_global"}
EVENTS, MASS, PRICE = "spike_events", "spike_mass", "end_loss"
GAINS = (MASS, "excess_area", "excess_area_global", "excess_worst")
SEEDS, ALPHA = 8, 0.05
ROWS = {
    "spiking": (MASS, EVENTS, PRICE, "mean_loss"),
    "faults": ("excess_area", "excess_area_global", EVENTS, PRICE),
    "calm": ("validation_loss", MASS, PRICE),
}
UNITS = {
    "excess_area": " nat × steps",
    "spike_mass": " nat × steps",
    "final_loss": " nat",
    "validation_loss": " nat",
    "retrieval_accuracy": " %",
    "moment1_growth": " ×",
    "clipped_percent_end": " %",
}
Check = tuple[str, Any, Any]
"""What is compared, the value that stands there, the recomputed one."""


def verify(results: Path, docs: Path) -> int:
    """Print every difference of the pages; 1 if anything differs, else 0."""
    runs = Runs(results)
    report = json.loads((results / "report.json").read_text("utf-8"))
    pages = {
        path.relative_to(docs.parent).as_posix(): path.read_text("utf-8")
        for path in [*docs.rglob("*.md"), *docs.parent.glob("README*.md")]
    }
    count = num_wrong = 0
    for name, seen, expected in itertools.chain(
        check_losses(runs.lines),
        check_tables(report["tables"], runs, pages),
        check_rows(report["rows"], runs, pages),
        check_verdicts(report["verdicts"], runs, pages),
        check_sentences(pages),
    ):
        count += 1
        if not same(seen, expected):
            num_wrong += 1
            print(f"{name}: stands {seen!r}, recomputed {expected!r}")
    print(f"{count} values recomputed, {num_wrong} differ")
    return int(num_wrong > 0 or count == 0)


def same(seen: Any, expected: Any) -> bool:
    """Equal; numbers up to what a line keeps of them, 7 digits."""
    if isinstance(seen, (int, float)) and isinstance(expected, (int, float)):
        return math.isclose(seen, expected, rel_tol=1e-6, abs_tol=1e-12) or (
            math.isnan(seen) and math.isnan(expected)
        )
    return bool(seen == expected)


class StoredRun:
    """The line of a run or a timing, below its experiment's line."""

    def __init__(self, file: str, part: dict[str, Any], line: Any) -> None:
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
        self.cpu: str = line.get("machine", {}).get("processor", "")
        self.rank = self.steps, self.cpu
        key = line.get("key", "")
        self.id: str = f"{key} on {self.cpu}" if self.cpu else key
        config = part["config"] | line.get("config", {})
        self.is_constant = config.get("schedule.kind") == "constant"
        defaults = CLIP_DEFAULTS.get(str(config.get("clip.name")), {})
        known = {f"clip.{name}": value for name, value in defaults.items()}
        self.config = {
            key: value
            for key, value in config.items()
            if key not in NOT_CONFIG and (key, value) not in known.items()
        }
        self.config_id = json.dumps(self.config, sort_keys=True)

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
        runs = sorted(
            filter(lambda r: r.steps, self.lines), key=lambda r: r.is_twin
        )
        self._by_id = {run.id: run for run in reversed(runs)}
        self.runs = [*self._by_id.values()]
        self.by_config: dict[str, list[StoredRun]] = {}
        for run in self.runs:
            self.by_config.setdefault(run.config_id, []).append(run)

    def of(self, ids: Iterable[str]) -> list[StoredRun]:
        """Return the runs of these ids."""
        return [self._by_id[name] for name in ids]

    def alike(self, own: StoredRun) -> list[StoredRun]:
        """Return runs of its config, of any length if that may be."""
        return [
            run
            for run in self.by_config[own.config_id]
            if own.is_constant or run.steps == own.steps
        ]

    def pairs(
        self, own: StoredRun, other: StoredRun, measure: str
    ) -> list[Pair]:
        """Every seed's and processor's longest pair of two configs."""
        name = "events_1000" if measure == EVENTS else measure
        sides = [
            sorted(
                (r for r in self.alike(side) if name in r.measures),
                key=lambda run: run.rank,
            )
            for side in (own, other)
        ]
        found = {
            (a.seed, a.cpu or "recorded before"): (a, b)
            for a, b in itertools.product(*sides)
            if (a.seed, a.rank) == (b.seed, b.rank)
        }
        return [found[key] for key in sorted(found)]


def check_losses(lines: list[StoredRun]) -> Iterator[Check]:
    """Compare what follows from a line's losses; add what lines lack."""
    series = [run for run in lines if run.series]
    twins = {(*run.place, run.cpu): run for run in series if run.is_twin}
    for run in series:
        found = from_losses(run)
        if run.series["faults"]:
            file, experiment, method, seed = run.place
            own, reference = (
                twins.get((file, experiment, name, seed, run.cpu))
                for name in (method, "GlobalGC")
            )
            found |= excess(run, own) if own else {}
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
    is_finite = not run.has_diverged and np.isfinite(judged).all()
    if not is_finite:
        found |= dict.fromkeys((MASS, PRICE, "mean_loss"), math.inf)
    else:
        found[PRICE] = float(np.median(judged[-500:]))
        found["mean_loss"] = float(judged.mean())
    if is_finite and len(judged) > 2 * WINDOW:
        rise = judged[WINDOW:] - medians(judged)
        above = rise[WINDOW:] - 5 * medians(abs(rise))
        found[MASS] = math.fsum(above[above > 0])
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


# Statistics: a seed counts once, whatever processors it ran on.


def counts(runs: Sequence[StoredRun]) -> tuple[np.ndarray, np.ndarray]:
    """Events and judged steps of every seed."""
    found: dict[int, np.ndarray] = {}
    for run in runs:
        names = ("events_1000", "judged_1000")
        own = np.array([run.measures[name] for name in names])
        found[run.seed] = found.get(run.seed, 0) + own
    events, judged = np.array([found[seed] for seed in sorted(found)]).T
    return events, judged


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
        size = np.zeros(len(d))
        size[d != 0] = stats.rankdata(np.abs(d[d != 0]))
        d = np.sign(d) * size
    halves = []  # every sum is one of each half's
    for half in (np.abs(d)[::2], np.abs(d)[1::2]):
        sums = np.zeros(1)
        for value in half:
            sums = np.concatenate([sums + value, sums - value])
        halves.append(sums)
    one, other = halves[0], np.sort(halves[1])
    seen, slack = d.sum(), 1e-12 * max(np.abs(d).sum(), 1e-300)
    low = np.searchsorted(other, seen + slack - one, "right").sum()
    lower = np.searchsorted(other, seen - slack - one, "left").sum()
    return low / 2.0 ** len(d), 1 - lower / 2.0 ** len(d)


def two_sided(d: np.ndarray) -> float:
    """Twice the smaller p of the sign flips."""
    return min(1.0, 2 * min(sign_flip(d)))


def ratio_limits(pairs: list[Pair]) -> tuple[float, float, float]:
    """The ratio of two rates with exact 95% limits."""
    (k1, t1), (k2, t2) = (counts(side) for side in zip(*pairs, strict=True))
    k, n, scale = k1.sum(), k1.sum() + k2.sum(), t2.sum() / t1.sum()
    low = stats.beta.ppf(0.025, k, n - k + 1) if k else 0.0
    high = stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    shares = (k / n if n else math.nan, low, high)
    value, low, high = (
        math.inf if s == 1 else float(scale * s / (1 - s)) for s in shares
    )
    return value, low, high


def mean_limits(d: np.ndarray) -> tuple[float, float, float]:
    """Mean and Student's limits."""
    half = stats.t.isf(0.025, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d))
    low, mean, high = (
        float(f"{d.mean() + x:.9g}")  # a tie is one everywhere
        for x in (-half, 0, half)
    )
    return mean, low, high


def having(pairs: list[Pair], measure: str) -> list[Pair]:
    """Pairs of which both runs have a measure."""
    return [p for p in pairs if all(measure in r.measures for r in p)]


def change(pairs: list[Pair], measure: str) -> str:
    """The reference's mean, then the method's; of events the sums."""
    if measure == EVENTS:
        new, old = (counts(side)[0].sum() for side in zip(*pairs, strict=True))
        return f"{old:.0f} → {new:.0f}"
    new, old = (
        math.fsum(run.measures[measure] for run in side) / len(pairs)
        for side in zip(*pairs, strict=True)
    )
    return f"{old:.3g} → {new:.3g}"


def beside(pairs: list[Pair], measures: Sequence[str]) -> str:
    """What stands beside a gain: its mass and its price."""
    text = ""
    for measure in measures:
        known = having(pairs, measure)
        if known:
            d = (
                log_ratios(known)
                if measure == MASS
                else differences(known, measure)
            )
            mean = float(f"{d.mean():.9g}")
            what = f"end {mean:+.3g} nat"
            if measure == MASS:
                what = f"mass {change(known, MASS)}"
            few = f" ({len(known)} pairs)" * (len(known) < len(pairs))
            text += f"; {what}{few}, p {two_sided(d):.2g}"
    return text


def check_tables(
    listed: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare the runs of each row; none may be left out of all tables."""
    shown = set()
    for table in listed:
        page, title = f"docs/{table['page']}", table["title"]
        lines = pages.get(page, "").partition(f"### {title}\n")[2]
        lines = lines.partition("\n### ")[0]
        for method, keys in table["rows"].items():
            place = f"{page}, {title}, {method}"
            own = runs.of(keys)[0]
            shown.add(own.config_id)
            alike = sorted(runs.alike(own), key=lambda run: run.rank)
            best = {run.seed: run.id for run in alike}
            yield f"{place}: runs", keys, [best[seed] for seed in sorted(best)]
            yield f"{place}: rows", f"\n| {method} |" in lines, True
    for run in runs.runs:
        if not run.is_twin:
            yield f"{run.name}: in a table", run.config_id in shown, True


def check_rows(
    rows: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare AdaGC's rows beside GlobalGC's; the runs allow no others."""
    everywhere = "docs/results/comparisons.md"
    short = ["docs/results.md", *(p for p in pages if p.startswith("README"))]
    found = set()
    for row in rows:
        label, compared, seeds, *texts = row["line"]
        place = f"{everywhere}, {label}, {compared}"
        cell = next(iter(row["cells"].values()))
        own, other = runs.of([cell["keys"][0], cell["other_keys"][0]])
        found.add((own.config_id, other.config_id))
        pairs = {m: runs.pairs(own, other, m) for m in ROWS[row["situation"]]}
        num = max(len({a.seed for a, _ in some}) for some in pairs.values())
        yield f"{place}: seeds", seeds, str(num)
        for (measure, some), text in zip(pairs.items(), texts, strict=True):
            yield f"{place}, {measure}", text, cell_text(measure, some, num)
        line = f"| {' | '.join(row['line'])} |"
        yield f"{place}: line", line in pages.get(everywhere, ""), True
        is_calm = row["situation"] == "calm"
        for page in short if row["is_named"] else ():
            if page in pages and not (is_calm and page.startswith("README")):
                yield f"{page}: {line}", line in pages[page], True
        if row["situation"] == "faults" and "AdaGC," not in compared:
            yield f"{place}: on the page", row["is_named"], True
    for own, other in possible_rows(runs):
        is_there = (own.config_id, other.config_id) in found
        yield f"{everywhere}: {own.name} beside {other.name}", is_there, True


def possible_rows(runs: Runs) -> Iterator[Pair]:
    """Every AdaGC, of any start, and GlobalGC that differ in the clip alone."""
    arms: dict[str, list[tuple[dict[str, Any], StoredRun]]] = {}
    for run in (own[0] for own in runs.by_config.values()):
        rest = {k: v for k, v in run.config.items() if k[:5] != "clip."}
        clip = {k[5:]: v for k, v in run.config.items() if k[:5] == "clip."}
        if {*clip} <= {"name", "lambda_abs", "init", "init_value"}:
            key = json.dumps(rest, sort_keys=True)
            arms.setdefault(key, []).append((clip, run))
    for alike in arms.values():
        for (own, run), (clip, other) in itertools.permutations(alike, 2):
            low, base = (c.get("lambda_abs", 1.0) for c in (clip, own))
            if (own["name"], clip["name"]) != ("adagc", "global_norm"):
                continue
            pairs = runs.pairs(run, other, "final_loss")
            num = len({a.seed for a, _ in pairs})
            if low in (base, 0.1) and num >= SEEDS and not run.is_twin:
                yield run, other


def cell_text(measure: str, pairs: list[Pair], num_seeds: int) -> str:
    """A measure of a row: "baseline → method", or the mean difference."""
    if not pairs:
        return "–"
    num = len({a.seed for a, _ in pairs})
    few = f" [{num} seeds]" if num < num_seeds else ""
    if measure == EVENTS:
        return change(pairs, EVENTS) + few
    if measure == MASS:
        _, low, high = map(math.exp, mean_limits(log_ratios(pairs)))
        return f"{change(pairs, MASS)} (× {low:.2g}-{high:.2g}){few}"
    mean, low, high = mean_limits(differences(pairs, measure))
    spec = "+.1f" if "area" in measure else "+.3f"
    return f"{mean:{spec}} ({low:{spec}}, {high:{spec}}){few}"


class Comparison:
    """One of a verdict's comparisons, tested again."""

    def __init__(
        self, fields: dict[str, Any], runs: Runs, is_once: bool = False
    ) -> None:
        self.fields = fields
        self.method: str = fields["method"]
        self.expect: str = fields["expect"]
        self.measure: str = fields["measure"]
        self.margin: float | None = fields.get("margin")
        self.values: list[float] = fields.get("values", [])
        self.first, self.second, self.beside = (
            runs.of(fields.get(name, ()))
            for name in ("keys", "other_keys", "beside_keys")
        )
        self.pairs: list[Pair] = []
        if self.first and self.second and fields.get("num_seeds", 1):
            self.pairs = runs.pairs(self.first[0], self.second[0], self.measure)
            if is_once:
                self.pairs = once(self.pairs)
                self.beside = [r for r in self.beside if r.series]
            self.first, self.second = (
                [*s] for s in zip(*self.pairs, strict=True)
            )
        self.num = len({run.seed for run in self.first})
        self.is_enough = bool(self.values) or self.num >= SEEDS
        self.p = self._test() if fields.get("num_seeds", 1) else {}
        """``p_for``, ``p_against``, ``p_equal``, ``p_fewer``, as tested."""

    @property
    def d(self) -> np.ndarray:
        """Paired differences."""
        return differences(
            self.pairs, self.measure, self.fields.get("times", 1)
        )

    @property
    def worst(self) -> float:
        """Largest value of what has a bound."""
        return max(
            self.values or [r.measures[self.measure] for r in self.first]
        )

    @property
    def is_blind(self) -> bool:
        """Whether no run of either side has an event."""
        if self.measure != EVENTS or not self.pairs:
            return False
        sides = [*self.first, *self.beside, *self.second]
        return not counts(sides)[0].sum()

    def _test(self) -> dict[str, float]:
        """Test what is expected, its opposite, no difference, fewer events."""
        if self.expect == "at most":
            less, greater, equal = self._test_bound()
        elif self.measure == EVENTS:
            less, greater, equal = self._test_events()
        else:
            less, greater, equal = self._test_values()
        sides = (greater, less) if self.expect == "higher" else (less, greater)
        p = dict(zip(("p_for", "p_against"), sides, strict=True))
        if equal is not None:
            p["p_equal"] = equal
        if (
            self.expect == "zero"
            and counts([*self.first, *self.beside])[0].sum()
        ):
            p |= {"p_for": 1.0, "p_fewer": less}
        return p

    def _test_bound(self) -> tuple[float, float, float | None]:
        """Of runs, which all have to keep it; of one number; of several."""
        bound, n = self.fields["bound"], len(self.values)
        if n > 1:
            error = np.std(self.values, ddof=1) / n**0.5
            t = (np.mean(self.values) - bound) / error
            return (
                float(stats.t.cdf(t, n - 1)),
                float(stats.t.sf(t, n - 1)),
                None,
            )
        excess = self.worst - bound
        close = bool(self.values) and abs(excess) <= (self.margin or -1.0)
        above, below = float(excess > 0 or close), float(excess <= 0 or close)
        return above, below, None if self.first else float(not close)

    def _test_values(self) -> tuple[float, float, float | None]:
        """Flip the signs of the differences, beside the margin's ends."""
        if self.margin is None:
            return *sign_flip(self.d), None
        low, high = (sign_flip(self.d + m) for m in (-self.margin, self.margin))
        within = max(low[0], high[1])
        if self.expect == "equal":
            return within, min(1.0, 2 * min(low[1], high[0])), None
        return (
            (*low, None)
            if self.expect == "no worse"
            else (*sign_flip(self.d), within)
        )

    def _test_events(self) -> tuple[float, float, float | None]:
        """The larger of the pooled and the clustered p; without events mass."""
        k1, t1 = (side.sum() for side in counts(self.first))
        if not self.second:
            rare = stats.poisson.cdf(k1, (self.margin or 0) * t1 / 1000)
            return float(not k1), 1.0 if k1 else float(rare), None
        if self.is_blind:
            known, far = having(self.pairs, MASS), math.log(2)
            if len({a.seed for a, _ in known}) < SEEDS:
                return 1.0, 1.0, 1.0 if self.expect == "higher" else None
            low, high = (sign_flip(log_ratios(known) + m) for m in (far, -far))
            within = max(low[1], high[0]) if self.expect == "higher" else None
            return low[0], high[1], within
        k2, t2 = (side.sum() for side in counts(self.second))
        (a, s), (b, t) = counts(self.first), counts(self.second)
        less, greater = sign_flip(a / s - b / t)
        less = max(float(stats.binom.cdf(k1, k1 + k2, t1 / (t1 + t2))), less)
        pooled = stats.binom.sf(k1 - 1, k1 + k2, t1 / (t1 + t2))
        equal, f = None, self.margin
        if f is not None:
            above = stats.binom.cdf(k1, k1 + k2, f * t1 / (f * t1 + t2))
            below = stats.binom.sf(k1 - 1, k1 + k2, t1 / (t1 + f * t2))
            equal = float(max(above, below))
        return less, max(float(pooled), greater), equal

    def check(self, place: str, fields: dict[str, Any]) -> Iterator[Check]:
        """Compare p-values, pairs and the number of seeds."""
        for key in ("p_for", "p_against", "p_equal", "p_fewer"):
            yield f"{place}, {key}", fields.get(key), self.p.get(key)
        if self.pairs:
            for name, side in (
                ("keys", self.first),
                ("other_keys", self.second),
            ):
                yield f"{place}: {name}", fields[name], [run.id for run in side]
        if not self.values:
            num = self.num if self.p else 0
            yield f"{place}: seeds", fields["num_seeds"], num

    def outcome(self, verdict: dict[str, Any]) -> str:
        """What it says for itself."""
        p = self.p
        if not p:
            return "missing"
        if "p_fewer" in p:
            (k1, t1), (k2, t2) = counts(self.first), counts(self.second)
            if k1.sum() * t2.sum() >= k2.sum() * t1.sum():
                return "no fewer"
            is_part = self.is_enough and p["p_fewer"] <= ALPHA
            return "part" if is_part else "open"
        if not self.is_enough:
            return "against" if p["p_against"] == 0 else "open"
        if p.get("p_equal", 1.0) <= ALPHA:
            return "small"
        if p["p_for"] <= ALPHA / 2:
            return "holds"
        if len(verdict["comparisons"]) * p["p_against"] <= ALPHA / 2:
            return "against"
        if self.is_blind and self.expect != "higher":
            return "small" if verdict["control_is_calm"] else "calm"
        return "open"

    def number(self) -> str:
        """Return it in one number; "" if it was not tested."""
        if self.expect == "occurs":
            k, t = (side.sum() for side in counts(self.first))
            return f"{self.method}: {k:.0f} events in {t:,.0f} steps"
        if self.expect == "at most" and self.p:
            bound = f" (bound {self.fields['bound']:g})"
            if self.first:
                return f"largest {self.worst:.3g}{bound}"
            spec = ".4g" if len(self.values) > 1 else ".3g"
            return f"{np.mean(self.values):{spec}}{bound}"
        if not self.pairs:
            return ""
        p_for = self.p.get("p_fewer", self.p["p_for"])
        p = f", p {min(p_for, self.p['p_against']):.2g}"
        if self.measure != EVENTS:
            mean, low, high = mean_limits(self.d)
            unit = UNITS.get(self.measure, "")
            price = (
                beside(self.pairs, (PRICE,)) if self.measure in GAINS else ""
            )
            return f"{mean:+.3g}{unit} ({low:+.3g} to {high:+.3g}){p}{price}"
        text, mass = (
            f"{change(self.pairs, EVENTS)} events",
            beside(self.pairs, (MASS, PRICE)),
        )
        value, low, high = ratio_limits(self.pairs)
        if math.isnan(value):
            return (
                f"{text} in {counts(self.first)[1].sum():,.0f} steps each{mass}"
            )
        ratio = f"{value:.2g} ({low:.2f}-{high:.2g})".replace("inf", "∞")
        return f"{text}, ratio {ratio}{p}{mass}"


def once(pairs: list[Pair]) -> list[Pair]:
    """One pair a seed, by the rule made after the runs."""
    for some in ([p for p in pairs if p[0].series and p[1].series], pairs):
        ranked = sorted(some, key=lambda pair: pair[0].rank)
        best = {pair[0].seed: pair for pair in ranked}
        if len(best) >= SEEDS:
            break
    return [best[seed] for seed in sorted(best)]


def check_verdicts(
    verdicts: list[dict[str, Any]], runs: Runs, pages: dict[str, str]
) -> Iterator[Check]:
    """Compare every claim's tests and verdict, and that of a later rule."""
    labels, tested = {}, {}
    for is_once in (False, True):
        tested = {
            v["id"]: [
                [Comparison(c, runs, is_once) for c in v[rules]]
                for rules in ("comparisons", "premises")
            ]
            for v in verdicts
        }
        p = {name: claim_p(own) for name, (own, _) in tested.items()}
        primary = [v["id"] for v in verdicts if v["primary"]]
        both = zip(
            *(holm([p[n][i] for n in primary]) for i in (0, 1)), strict=True
        )
        p |= dict(zip(primary, both, strict=True))
        for v in verdicts:
            name, (own, premises) = v["id"], tested[v["id"]]
            labels[name, is_once] = label_of(v, own, premises, *p[name])
            if is_once:
                continue
            listed = [*v["comparisons"], *v["premises"]]
            for c, fields in zip([*own, *premises], listed, strict=True):
                yield from c.check(f"{name}, {c.method}", fields)
            for key, value in zip(("p_for", "p_against"), p[name], strict=True):
                yield f"{name}: {key}", v[key], value
            yield f"{name}: verdict", v["verdict"], labels[name, False]
            yield from check_pages(v, own, pages)
    for v in verdicts:
        name, other = v["id"], labels[v["id"], True]
        yield f"{name}: with the later rule", v["other_pairs"], other
        text = section(pages, name)
        said = "made after the runs, would say" in text
        yield f"{name}: says that it flips", said, other != v["verdict"]


def claim_p(comparisons: list[Comparison]) -> tuple[float, float]:
    """Return the claim's p for and against, before Holm."""
    against = [
        c.p["p_against"]
        for c in comparisons
        if c.p and (c.is_enough or c.p["p_against"] == 0)
    ]
    p_for = max((c.p.get("p_for", 1.0) for c in comparisons), default=1.0)
    return p_for, min([1.0, *(len(comparisons) * p for p in against)])


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's p of several claims, in their order."""
    return [
        max(
            min(1.0, sum(q >= other for q in p_values) * other)
            for other in p_values
            if other <= p
        )
        for p in p_values
    ]


def label_of(
    verdict: dict[str, Any],
    comparisons: list[Comparison],
    premises: list[Comparison],
    p_for: float,
    p_against: float,
) -> str:
    """Return the verdict by the rules of the page: the first that applies."""
    own, premise = (
        {c.outcome(verdict) for c in rules} for rules in (comparisons, premises)
    )
    is_part = bool(own & {"holds", "part"})
    is_one = all(len(c.values) == 1 for c in comparisons)
    is_back = any(c.p.get("p_for", 1.0) > 0.5 for c in comparisons)
    is_sure = not verdict["primary"] or p_against <= ALPHA / 2
    rules = (
        ("not testable here", not own),
        ("not exercised", premise - {"holds"}),
        ("computed", own == {"holds"} and is_one),
        ("reproduced", own == {"holds"} and p_for <= ALPHA / 2),
        ("undecided", own == {"holds"}),
        ("not run", is_part and "missing" in own),
        ("undecided", own == {"holds", "open"} and not is_back),
        ("partly", is_part),
        ("contradicted", "no fewer" in own),
        ("contradicted", "against" in own and is_sure),
        ("undecided", "against" in own),
        ("not run", "missing" in own),
        ("undecided", "open" in own),
        ("no difference", "small" in own),
        ("not exercised", True),
    )
    return next(label for label, applies in rules if applies)


def section(pages: dict[str, str], claim: str) -> str:
    """Return a claim's part of the page of claims."""
    page = pages.get("docs/results/claims.md", "")
    found = re.search(rf"(?ms)^### {re.escape(claim)}\n(.*?)(?=^##|\Z)", page)
    return found[1] if found else ""


def check_pages(
    verdict: dict[str, Any], own: list[Comparison], pages: dict[str, str]
) -> Iterator[Check]:
    """Compare label and number in a claim's lines on the pages."""
    words = {"reproduced": "holds", "contradicted": "does not hold"}
    label, name = verdict["verdict"], verdict["id"]
    right = words.get(label, label) if verdict["extension"] else label
    found = re.search(r"(?m)^\*\*(.+)\*\*$", section(pages, name))
    yield f"docs/results/claims.md, {name}", found and found[1], right
    numbers = {"–", ""}
    for c in own:
        numbers |= {
            c.number(),
            f"{c.fields.get('other')} → {c.method}: {c.number()}",
        }
    for page in ("docs/results.md", "docs/results/claims.md"):
        for line in pages.get(page, "").splitlines():
            if line.startswith("| [") and f"#{name})" in line:
                _, label, number, *_ = (
                    cell.strip("* |") for cell in line.split(" | ")
                )
                yield f"{page}, {name}: label", label, right
                shown = number if number in numbers else "?"
                yield f"{page}, {name}: number", number, shown


def check_sentences(pages: dict[str, str]) -> Iterator[Check]:
    """No gain stands without its price, and no pair of zeros alone."""
    gains = ("Spike mass", "Spike events", "Damage", "尖峰", "损害")
    prices = ("Loss at the end", "Validation loss", "结束时的损失")
    for page in (p for p in pages if "results" in p or p.startswith("README")):
        for line in pages[page].splitlines():
            is_head = line.startswith("|") and any(
                f"| {g}" in line for g in gains
            )
            if is_head and "window" not in line:
                has_price = any(price in line for price in prices)
                yield (
                    f"{page}, {line}: a price beside the gain",
                    has_price,
                    True,
                )
            if "0 → 0 events" in line and line.startswith("| ["):
                yield f"{page}, {line}: mass", "; mass " in line, True
