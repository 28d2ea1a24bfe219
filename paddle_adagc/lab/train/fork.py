# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A new run that starts from another run's checkpoint."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.record.files import QUANTITIES, read_run_json
from paddle_adagc.lab.train.changes import find_changes
from paddle_adagc.lab.train.checkpoints import COMPLETE, find_checkpoint_fault
from paddle_adagc.lab.train.config import RunConfig


@dataclasses.dataclass(frozen=True)
class Fork:
    """A checkpoint to start from, and what the new run takes from it.

    Args:
        source: Directory of the other run.
        step: Step of the checkpoint; None: the newest.
    """

    source: Path
    step: int | None = None

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Fork | None:
        """Return the origin of a run; None if it is no fork.

        Args:
            run: Its ``run.json``.
        """
        origin = run.get("forked_from")
        return origin and cls(Path(origin["run"]), origin["step"])

    def check_run(self, target: Path, run: Mapping[str, Any]) -> None:
        """Refuse a target that holds another run than this fork.

        Raises:
            FileExistsError: See above.
        """
        origin = Fork.of(run)
        if run and (
            origin is None
            or origin.source != self.source
            or self.step not in (None, origin.step)
        ):
            raise FileExistsError(
                f"{target} holds a run that is not this fork: choose another "
                "directory for --fork, or give --overwrite"
            )

    def checkpoint(self) -> Path:
        """Find the checkpoint.

        Raises:
            FileNotFoundError: There is none, or none of this step.
            ValueError: It is damaged.
        """
        found = complete_checkpoints(self.source)
        if not found:
            raise FileNotFoundError(
                f"{self.source} has no complete checkpoint to fork: train with "
                "train.save_every"
            )
        step = max(found) if self.step is None else self.step
        if step not in found:
            raise FileNotFoundError(
                f"{self.source} has no checkpoint of step {step}: it has those "
                f"of steps {sorted(found)}; train.keep_checkpoints keeps more"
            )
        if fault := find_checkpoint_fault(found[step], with_record=False):
            raise ValueError(f"{found[step]} is damaged: {fault}")
        return found[step]

    def facts(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return what the new run's ``run.json`` says of its origin.

        Args:
            config: The new run's, as ``run.json`` holds it.
        """
        earlier = read_run_json(self.source)["config"]
        return {
            "run": str(self.source),
            "step": saved_step(self.checkpoint()),
            "changed": {
                change.key: [change.old, change.new]
                for change in find_changes(earlier, config)
            },
        }

    def keeps(self, config: RunConfig, section: str) -> bool:
        """Tell whether the state of the clip or optimizer is taken over.

        It is if the name is the same; other arguments keep the state.

        Args:
            config: The new run.
            section: ``"clip"`` or ``"optimizer"``.
        """
        earlier = read_run_json(self.source)["config"][section]["name"]
        new = getattr(config, section)
        return earlier == (new["name"] if section == "clip" else new.name)

    def copy_record(self, target: Path, tensor_names: list[str]) -> None:
        """Give the new run the steps before the checkpoint.

        Tensors that only the new run records are NaN there.

        Args:
            target: Directory of the new run.
            tensor_names: What it records.
        """
        step = saved_step(self.checkpoint())
        lines = (self.source / "metrics.jsonl").read_bytes().splitlines(True)
        (target / "metrics.jsonl").write_bytes(b"".join(lines[:step]))
        names = json.loads((self.source / "tensors.json").read_text())
        (target / "tensors.json").write_text(json.dumps(tensor_names))
        if names == tensor_names:
            shutil.copy(self.source / "tensors.f32", target)
            return
        shape = (step, len(QUANTITIES), len(tensor_names))
        np.full(shape, np.nan, "<f4").tofile(target / "tensors.f32")


def complete_checkpoints(directory: Path) -> dict[int, Path]:
    """Return the complete checkpoints of a run by step."""
    return {
        saved_step(path.parent): path.parent
        for path in directory.glob(f"checkpoint-*/{COMPLETE}")
    }


def saved_step(checkpoint: Path) -> int:
    """Return the steps that a complete checkpoint has made."""
    return int(json.loads((checkpoint / COMPLETE).read_text())["step"])
