# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What one section of the report compares: methods, seeds, clean twins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from paddle_adagc.lab.record.files import RunRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Runs of one or several methods that differ in the method alone.

    Raises:
        ValueError: No runs; methods with different seeds; clean runs that do
            not pair with the runs; a setting out of range.
    """

    title: str
    """Heading of the section, for example ``"Llama proxy, no faults"``."""

    description: str
    """What was trained and why, as plain text."""

    runs: dict[str, list[RunRecord]]
    """Runs of each method, one per seed, the same seeds in the same order for
    every method. The first method is the one the others are compared with:
    its worst event is the one that the figures zoom into."""

    clean_runs: dict[str, list[RunRecord]] | None = None
    """For paired excess: the same method, seeds and batches without faults, in
    the order of ``runs``. Methods may be left out."""

    skip_steps: int = 200
    """First steps that are not judged: the initial descent. Default 200."""

    windows: tuple[int, ...] = (1000, 200)
    """Windows of the spike score, steps; the first one is the main one."""

    last_steps: int = 100
    """Steps at the end whose mean is the final training loss. Default 100."""

    directory: Path | None = None
    """Folder that holds the run directories, for the report to point to."""

    dynamics_tensor: str | None = None
    """Tensor whose norms the figure of the optimizer's dynamics shows."""

    paired: bool = True
    """Whether the methods' runs pair by seed; if not, one run a method."""

    def __post_init__(self) -> None:
        """Check that the runs pair up."""
        if not self.runs or not all(self.runs.values()):
            raise ValueError(
                f"experiment {self.title!r} needs at least one run of every "
                f"method, got { {m: len(r) for m, r in self.runs.items()} }"
            )
        if self.paired:
            self._check_pairs(self.runs, self.runs)
        elif max(map(len, self.runs.values())) > 1 or self.clean_runs:
            raise ValueError(
                f"experiment {self.title!r} is not paired: it takes one run a "
                "method, and no clean runs"
            )
        for method, clean in (self.clean_runs or {}).items():
            if method not in self.runs:
                raise ValueError(
                    f"clean_runs has {method!r}, runs has {list(self.runs)}"
                )
            self._check_pairs({method: clean}, {method: self.runs[method]})
        if not self.windows or min(self.windows) < 2:
            raise ValueError(
                f"windows must hold steps of at least 2, got {self.windows}"
            )
        if self.skip_steps < 0 or self.last_steps < 1:
            raise ValueError(
                "skip_steps must not be negative and last_steps must be "
                f"positive, got {self.skip_steps} and {self.last_steps}"
            )

    def _check_pairs(
        self,
        runs: dict[str, list[RunRecord]],
        others: dict[str, list[RunRecord]],
    ) -> None:
        expected = _seeds(next(iter(others.values())))
        for method, records in runs.items():
            if _seeds(records) != expected:
                raise ValueError(
                    f"experiment {self.title!r}: {method} has seeds "
                    f"{_seeds(records)}, expected {expected}: pass the same "
                    "seeds in the same order for every method"
                )

    @property
    def reference(self) -> str:
        """The first method."""
        return next(iter(self.runs))

    @property
    def seeds(self) -> list[object]:
        """Seed of each run of a method, ``None`` where not known."""
        return _seeds(self.runs[self.reference]) if self.paired else [None]

    def first_methods(self, count: int) -> Experiment:
        """Return a copy with at most the first ``count`` methods."""
        methods = [*self.runs][:count]
        clean = self.clean_runs or {}
        return dataclasses.replace(
            self,
            runs={m: self.runs[m] for m in methods},
            clean_runs={m: clean[m] for m in methods if m in clean} or None,
        )

    @property
    def has_faults(self) -> bool:
        """Whether any run had a fault injected."""
        return any(run.faults for runs in self.runs.values() for run in runs)


def _seeds(records: list[RunRecord]) -> list[object]:
    return [record.run.get("seed") for record in records]
