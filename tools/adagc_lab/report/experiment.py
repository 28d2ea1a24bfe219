# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What one section of a report compares: methods, seeds, clean twins."""

from __future__ import annotations

import dataclasses

from adagc_lab.record.files import RunRecord
from paddle_adagc.checks import check_choice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Runs that differ in the method alone."""

    title: str
    """Heading of the section, for example ``"Llama proxy, no faults"``."""

    description: str
    """What was trained and why, as plain text."""

    runs: dict[str, list[RunRecord]]
    """Runs of each method, one per seed, the same seeds in the same order for
    every method. The others are compared with the first method, whose worst
    event the figures show."""

    clean_runs: dict[str, list[RunRecord]] = dataclasses.field(
        default_factory=dict
    )
    """The same method, seeds and batches without faults, in the order of
    ``runs``. Methods may be left out."""

    skip_steps: int = 200
    """First steps that are not judged: the initial descent."""

    dynamics_tensor: str | None = None
    """Tensor whose norms a figure of the whole run shows."""

    def __post_init__(self) -> None:
        """Check the name of the tensor, which a person wrote."""
        for run, *_ in self.runs.values() if self.dynamics_tensor else ():
            what = f"dynamics_tensor of {run.name}"
            check_choice(what, self.dynamics_tensor, run.tensor_names)

    @property
    def reference(self) -> str:
        """The first method."""
        return next(iter(self.runs))

    @property
    def seeds(self) -> list[object]:
        """Seed of each run of a method."""
        return [run.run.get("seed") for run in self.runs[self.reference]]

    def all_runs(self) -> list[RunRecord]:
        """Return the runs of all methods."""
        return [run for runs in self.runs.values() for run in runs]

    def first_methods(self, count: int) -> Experiment:
        """Return a copy with at most the first ``count`` methods."""
        runs, clean = (
            {m: group[m] for m in [*self.runs][:count] if m in group}
            for group in (self.runs, self.clean_runs)
        )
        return dataclasses.replace(self, runs=runs, clean_runs=clean)
