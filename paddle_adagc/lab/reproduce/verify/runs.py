# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The runs in ``results/``, and which of them belong together."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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


class Runs:
    """All lines of a folder, and the runs among them.

    Attributes:
        lines: Every cell of every file.
        runs: One of the copies of each run.
    """

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
        found: dict[str, list[StoredRun]] = {}
        for cell in self.lines:
            if cell["title"] == title and not steps(cell):
                found.setdefault(cell["method"], []).append(cell)
        return found

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
        found: dict[int, tuple[StoredRun, StoredRun]] = {}
        ones, others = (
            [
                c
                for c in self.runs
                if is_one_config(side[0], c) and measure in c["measures"]
            ]
            for side in (first, second)
        )
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
