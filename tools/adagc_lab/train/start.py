# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a run starts: anew, at its own checkpoint, or at another run's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adagc_lab.clips.starts import STARTS
from adagc_lab.data.loading import check_fingerprint, check_held_out
from adagc_lab.record import files
from adagc_lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
    read_complete,
)
from adagc_lab.train.config import ParallelConfig, RunConfig
from paddle_adagc.files import TEMPORARY, make_directory
from paddle_adagc.watch.reading import copy_record

_LENGTH = "train.max_steps"
_FREE = (
    _LENGTH,
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep_checkpoints",
    "train.visualdl",
)
"""Keys that a resumed run may change; others take a fork."""

_FORKED = "forked"
"""State of a fork that is prepared and has not begun."""


class Fork(NamedTuple):
    """Another run's checkpoint, from which a new run starts."""

    source: Path  # directory of the other run
    step: int | None = None  # step of the checkpoint; None: the newest


class Beginning(NamedTuple):
    """Where a run begins; without a value, at its first step."""

    ended: str | None = None  # how the run ended that needs no more steps
    checkpoint: Path | None = None
    afresh: frozenset[str] = frozenset()
    """What takes no state from it, of ``"clip"`` and ``"optimizer"``."""


class Start:
    """What a run's directory holds, and what the run starts from.

    The first process calls :meth:`read`, and :meth:`write` once the weights of
    the checkpoint are known to fit. The options are those of
    :func:`.run.run_pretraining`.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        overwrite: bool = False,
        fork: Fork | None = None,
    ) -> None:
        # The config as ``run.json`` holds it; a run may be moved.
        self._settings = json.loads(json.dumps(config.to_dict()))
        del self._settings["train"]["output_dir"]
        self._max_steps = config.train.max_steps
        self._directory = Path(config.train.output_dir)
        self._overwrites, self._fork = overwrite, fork
        self._earlier: dict[str, Any] = {}  # content of run.json

    def read(self) -> Beginning:
        """Find where to begin; refuse what does not fit.

        A run without a step counts as none; for a fork without a step of its
        own the directory is prepared.
        """
        directory = self._directory
        broken_off = {*directory.glob(f".run.json.*{TEMPORARY}")}
        held = {*directory.iterdir()} - broken_off
        if held and not (directory / "run.json").exists():
            raise FileExistsError(
                f"{directory} is not empty and holds no run: choose another "
                "train.output_dir"
            )
        run = {} if self._overwrites else files.read_run_json(directory)
        if self._fork is not None and not self._has_begun(self._fork, run):
            run = self._prepare(self._fork)
        has_steps = files.num_steps(directory) > 0
        status = run.get("status")
        if not run or not (has_steps or status in files.ENDED):
            return Beginning()
        changes = _changes(run["config"], self._settings)
        if others := [key for key in changes if key not in _FREE]:
            raise FileExistsError(
                f"{directory} holds a run with another config "
                f"({', '.join(others)}): start a new run from its checkpoint "
                "with --fork NEW_DIR, choose another train.output_dir, or give "
                "--overwrite to replace it"
            )
        is_over = status in files.ENDED
        if status == "finished":
            self._check_length(run["config"]["train"]["max_steps"])
            is_over = _LENGTH not in changes
        return Beginning(status) if is_over else self._resume(run)

    def _resume(self, run: dict[str, Any]) -> Beginning:
        """Begin at the newest whole checkpoint, or anew without one."""
        found = last_checkpoint(self._directory)
        if found is None:
            if run["status"] == "finished":
                raise FileNotFoundError(
                    f"{self._directory} holds a finished run without a "
                    "checkpoint, which cannot be extended: train with "
                    "train.save_every, or give --overwrite to start anew"
                )
            return Beginning()
        self._earlier = run
        step = read_complete(found)["step"]
        self._check_length(step)
        origin = run.get("forked_from", {})
        is_first = origin.get("step") == step
        afresh = frozenset(origin["afresh"] if is_first else ())
        return Beginning(None, found, afresh)

    def _has_begun(self, fork: Fork, run: Mapping[str, Any]) -> bool:
        """Whether the directory's run is this fork, with steps of its own."""
        if not run:
            return False
        origin = run.get("forked_from", {})
        is_same = Path(origin.get("run", "")).resolve() == fork.source.resolve()
        if not is_same or fork.step not in (None, origin["step"]):
            raise FileExistsError(
                f"{self._directory} holds a run that is not this fork: choose "
                "another directory for --fork, or give --overwrite"
            )
        num_steps = files.num_steps(self._directory)
        return run["status"] != _FORKED and num_steps > origin["step"]

    def _prepare(self, fork: Fork) -> dict[str, Any]:
        """Copy another run's checkpoint and record; return ``run.json``.

        From there the fork resumes, as any other run.
        """
        found = _checkpoint_of(fork)
        step = read_complete(found)["step"]
        if self._max_steps <= step:
            raise ValueError(
                f"train.max_steps={self._max_steps}: {found} has made {step} "
                "steps; give more, or --at an earlier checkpoint"
            )
        old = files.read_run_json(found.parent)["config"]
        changed = _changes(old, self._settings)
        for key, values in changed.items():
            is_rounded = key == "train.precision" and "float8" in values
            if key.startswith("parallel.") or is_rounded:
                raise ValueError(
                    f"--fork: {key} was {values[0]} and is {values[1]}: a "
                    "checkpoint's optimizer state has the names of its own "
                    "layout; keep it"
                )
        check_held_out(changed, self._settings["data"]["kind"])
        # Of what keeps its name, other arguments keep the state, but the
        # ablation's starts are another clip.
        afresh = [s for s in ("clip", "optimizer") if f"{s}.name" in changed]
        if len({x in STARTS for x in changed.get("clip.init", ())}) == 2:
            afresh.append("clip")
        origin = {
            "run": str(found.parent.absolute()),
            "step": step,
            "changed": changed,
            "afresh": afresh,
        }
        _empty(self._directory)
        run = {"config": self._settings, "forked_from": origin}
        run["status"] = _FORKED
        files.update_run_json(self._directory, **run)
        shutil.copytree(found, self._directory / found.name)
        record = make_directory(self._directory / files.RECORD)
        copy_record(found.parent / files.RECORD, record)
        return run

    def _check_length(self, step: int) -> None:
        if self._max_steps < step:
            raise ValueError(
                f"train.max_steps={self._max_steps}: the run has made {step} "
                "steps; give at least as many, or --fork an earlier checkpoint"
            )

    def write(self, facts: dict[str, Any]) -> None:
        """Write ``run.json``, with the facts of the run that starts.

        A run that changed to another type of processor has both.
        """
        if self._earlier:
            other = ", or start a new run with --fork NEW_DIR"
            check_fingerprint(facts["data"], self._earlier, other)
            known = self._earlier.get("machine", {}).get("processor", "")
            types = [*known.split("; "), facts["machine"]["processor"]]
            both = "; ".join(dict.fromkeys(filter(None, types)))
            facts["machine"] = {**facts["machine"], "processor": both}
        else:
            _empty(self._directory)
        files.update_run_json(
            self._directory, config=self._settings, **facts, status="running"
        )


def _checkpoint_of(fork: Fork) -> Path:
    """Return the checkpoint to fork."""
    found = {
        int(path.parent.name.removeprefix("checkpoint-")): path.parent
        for path in fork.source.glob(f"checkpoint-*/{COMPLETE}")
    }
    if not found:
        raise FileNotFoundError(
            f"{fork.source} has no complete checkpoint to fork: train with "
            "train.save_every"
        )
    step = max(found) if fork.step is None else fork.step
    if step not in found:
        raise FileNotFoundError(
            f"{fork.source} has no checkpoint of step {step}: it has those "
            f"of steps {sorted(found)}; train.keep_checkpoints keeps more"
        )
    if fault := find_checkpoint_fault(found[step]):
        raise ValueError(f"{found[step]} is damaged: {fault}")
    return found[step]


def _changes(*configs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Compare two configs; one without a layout has that of one process."""
    alone = {"parallel": ParallelConfig().model_dump()}
    old, new = ({**alone, **config} for config in configs)
    return find_changes(old, new)


def find_changes(old: Any, new: Any, where: str = "") -> dict[str, list[Any]]:
    """Return what differs between two configs: dotted key -> both values."""
    are_maps = isinstance(old, Mapping) and isinstance(new, Mapping)
    # None is a value of a clip's overrides, whose keys have dots.
    if not are_maps or where == "clip.overrides":
        return {} if old == new else {where: [old, new]}
    found: dict[str, list[Any]] = {}
    for key in {**old, **new}:
        inner = f"{where}.{key}".lstrip(".")
        found |= find_changes(old.get(key), new.get(key), inner)
    return found


def _empty(directory: Path) -> None:
    """Empty a directory; the directory itself, and its lock, stay."""
    # ``run.json`` last: without it a later --overwrite would know no run.
    for path in sorted(directory.iterdir(), key=lambda p: p.name == "run.json"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
