# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results of a target as JSON lines: a line per experiment and per run.

The first line is about the target and has a checksum of the others. Then an
``"experiment"`` line with the options that all of its runs share is followed by
its ``"cell"`` lines, with the options in which the run differs, its commit,
seed, versions, timings and measures. Newer lines also hold the processor, the
corpus' SHA-256 and the losses of all steps in 16 bits
(:mod:`paddle_adagc.lab.reproduce.series`), some 6 KB a run; older lines are
read without them. Numbers that are not finite are the strings ``"inf"``,
``"-inf"`` and ``"nan"``. In older lines ``excess_events_*`` counts events anew
at every threshold; newer ones have ``events_above_*``
(:func:`paddle_adagc.stability.spike_score.count_events`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle_adagc.files import atomic_write
from paddle_adagc.lab.checksums import SEAL, check_seal, sealed
from paddle_adagc.lab.processor import with_vectors

_CHECKSUM = "lines_sha256"
RECORDED_BEFORE = "recorded before"
"""Processor of a line that does not name one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """One run, or one repetition of a timing, in numbers."""

    method: str
    seed: int
    measures: dict[str, float]
    """What was measured, by name; left out where it could not be."""

    is_clean_twin: bool = False
    key: str = ""
    """Name of the run directory."""

    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of this run alone, with dotted keys."""

    status: str = "finished"
    commit: str | None = None
    versions: dict[str, Any] = dataclasses.field(default_factory=dict)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the run was trained on, with its SHA-256."""

    series: dict[str, Any] = dataclasses.field(default_factory=dict)
    """``loss`` (all steps, encoded), ``faults`` (first and last step of every
    burst) and ``left_out`` (the same, of steps whose own loss is that of a
    corrupted batch)."""

    timings: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Length of the run; 0 for what is no run."""
        return int(self.measures.get("steps", 0))

    @property
    def cpu_model(self) -> str:
        """Processor with its vectors, or :data:`RECORDED_BEFORE`."""
        if "instruction_sets" not in self.machine:
            return RECORDED_BEFORE
        # Older lines have the model without its vectors.
        return with_vectors(
            self.machine["processor"], self.machine["instruction_sets"]
        )

    @property
    def run_id(self) -> str:
        """Key, and the processor where it was recorded."""
        cpu = self.cpu_model
        return self.key if cpu == RECORDED_BEFORE else f"{self.key} on {cpu}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """What came out of one experiment."""

    name: str
    title: str
    description: str = ""
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options that all of its runs share, with dotted keys."""

    paper: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The paper's values: label -> method -> value."""

    skip_steps: int = 0
    cells: list[CellResult] = dataclasses.field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        """In the order of the grid; the first is the reference."""
        return [*dict.fromkeys(cell.method for cell in self.cells)]

    @property
    def seeds(self) -> list[int]:
        """Seeds, in order."""
        return [*dict.fromkeys(cell.seed for cell in self.cells)]

    def values(self, method: str, measure: str) -> list[float | None]:
        """One value per seed, None where there is none; without the twins."""
        by_seed = {
            cell.seed: cell.measures.get(measure)
            for cell in self.cells
            if cell.method == method and not cell.is_clean_twin
        }
        return [by_seed.get(seed) for seed in self.seeds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetResult:
    """What came out of a target."""

    target: str
    title: str
    cuts: list[str] = dataclasses.field(default_factory=list)
    """What a budget left out, as sentences."""

    experiments: list[ExperimentResult] = dataclasses.field(
        default_factory=list
    )

    def experiment(self, name: str) -> ExperimentResult | None:
        """Return the experiment of that name, if it was run."""
        return next((e for e in self.experiments if e.name == name), None)


def write_results(path: str | os.PathLike[str], result: TargetResult) -> Path:
    """Replace a file by the results, atomically."""
    lines: list[dict[str, Any]] = []
    for experiment in result.experiments:
        fields = dataclasses.asdict(experiment)
        cells = fields.pop("cells")
        lines.append({"kind": "experiment", **fields})
        lines += [{"kind": "cell", **_without_defaults(c)} for c in cells]
    text = "".join(map(_line, lines))
    head = {
        "kind": "target",
        "target": result.target,
        "title": result.title,
        "cuts": result.cuts,
        _CHECKSUM: hashlib.sha256(text.encode()).hexdigest(),
    }
    return atomic_write(path, _line(sealed(head)) + text)


def _line(fields: dict[str, Any]) -> str:
    text = json.dumps(_encoded(fields), ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


def read_results(path: str | os.PathLike[str]) -> TargetResult:
    """Read what :func:`write_results` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not of this format, or was changed.
    """
    result: TargetResult | None = None
    content = Path(path).read_bytes()
    for number, line in enumerate(content.splitlines(), 1):
        try:
            fields = _decoded(json.loads(line))
            kind = fields.pop("kind")
            if kind == "target":
                _check_checksum({"kind": kind, **fields}, content)
                result = TargetResult(**_without_checksums(fields))
            elif kind == "experiment" and result is not None:
                result.experiments.append(ExperimentResult(**fields))
            elif kind == "cell" and result is not None:
                result.experiments[-1].cells.append(CellResult(**fields))
            else:
                raise ValueError(f"a line of kind {kind!r} out of place")
        except (
            *(AttributeError, IndexError, KeyError, TypeError),
            *(OverflowError, RecursionError),
        ) as error:
            raise ValueError(f"{path}, line {number}: {error!r}") from error
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if result is None:
        raise ValueError(f"{path} is empty")
    return result


def _without_checksums(head: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in head.items() if k not in (_CHECKSUM, SEAL)}


def _check_checksum(head: dict[str, Any], content: bytes) -> None:
    """Refuse results that were changed; older ones have no checksum."""
    if _CHECKSUM not in head and SEAL not in head:
        return
    lines = content.partition(b"\n")[2]
    check_seal(head, ())
    if head.get(_CHECKSUM) != hashlib.sha256(lines).hexdigest():
        raise ValueError(
            "the lines below have another SHA-256 than when they were "
            f"written; if the change is meant, remove {_CHECKSUM} and {SEAL}"
        )


def _without_defaults(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell's fields without empty ones."""
    return {
        key: value
        for key, value in cell.items()
        if value or key in ("method", "seed", "measures")
    }


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _encoded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(part) for part in value]
    return value


def _decoded(line: dict[str, Any]) -> dict[str, Any]:
    if "measures" in line:
        measures = line["measures"]
        line["measures"] = {name: float(measures[name]) for name in measures}
    return line
