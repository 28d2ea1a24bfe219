# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages about what happens inside of a few runs: why, not how often."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adagc_lab.committed import differences
from adagc_lab.record.files import RunRecord
from paddle_adagc.files import atomic_write

ROOT = Path(__file__).resolve().parents[3]
SEED = 606
"""A development seed: claims are judged on others."""

Records = Sequence[Mapping[str, Any]]
"""What is kept of each run, as JSON values."""


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A run of a study."""

    name: str
    config: str
    """File below ``configs/proxy``."""

    changes: Sequence[str] = ()
    """Values of the config, ``key=value``."""

    forked_from: str = ""
    """Name of the run that this one continues; empty: it starts anew."""

    first_step: int = 0
    """Step from which it continues the other run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Runs, and what they give for the page ``docs/<name>.md``."""

    name: str
    runs: Sequence[StudyRun]
    course: Callable[[RunRecord, StudyRun], dict[str, Any]]
    """What is kept of a run."""

    tables: Callable[[Records], dict[str, str]]
    """Tables by the mark that stands before them: ``<!-- mark -->``."""

    figures: Callable[[Records], dict[str, str]]
    """Pictures by the file's name in ``docs/images``."""

    @property
    def results(self) -> Path:
        """File with a line per run."""
        return ROOT / "results" / f"{self.name}.jsonl"

    def train(self, output: Path) -> None:
        """Train the runs, or continue them, and write their results."""
        records = [self._measured(output, run) for run in self.runs]
        text = "".join(json.dumps(record) + "\n" for record in records)
        atomic_write(self.results, text)

    def _measured(self, output: Path, run: StudyRun) -> dict[str, Any]:
        folder = output / folder_name(run.name, run.first_step)
        origin = run.forked_from
        first = output / folder_name(origin) if origin else folder
        arguments = [str(ROOT / "configs/proxy" / run.config), *run.changes]
        arguments += [f"train.seed={SEED}", f"train.output_dir={first}"]
        if origin:  # one that has begun goes on
            arguments += ["--fork", str(folder), "--at", str(run.first_step)]
        subprocess.run(
            [sys.executable, ROOT / "tools/pretrain.py", *arguments],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        record = RunRecord.load(folder)
        about = {"run": run.name, "first_step": run.first_step, "seed": SEED}
        machine = record.run.get("machine", {}).get("processor")
        return {**about, "processor": machine, **self.course(record, run)}

    def read_records(self) -> list[dict[str, Any]]:
        """Read the results."""
        lines = self.results.read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def made_files(self, records: Records) -> dict[Path, str]:
        """Page and pictures, with the text that the records give."""
        path = ROOT / "docs" / f"{self.name}.md"
        page = path.read_text("utf-8")
        for mark, table in self.tables(records).items():
            begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
            before, _, rest = page.partition(begin)
            page = f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
        images = ROOT / "docs/images"
        made = {images / n: text for n, text in self.figures(records).items()}
        return {**made, path: page}

    def stale_files(self) -> dict[Path, str]:
        """Those of :meth:`made_files` that are not what the results give."""
        made = self.made_files(self.read_records())
        return {
            path: text
            for path, text in made.items()
            if not path.exists() or differences(path.read_text("utf-8"), text)
        }


def folder_name(name: str, first_step: int = 0) -> str:
    """Return the folder of a run below the output folder."""
    return f"{name.replace(' ', '_')}_{first_step}"


def rounded(values: np.ndarray) -> list[float]:
    """Six significant digits: training in float32 has no more."""
    return [float(f"{value:.6g}") for value in values]
