# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a run starts: anew, at its own checkpoint, or at another run's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adagc_lab.data.loading import check_fingerprint
from adagc_lab.record import files
from adagc_lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
    read_complete,
)
from adagc_lab.train.config import ParallelConfig, RunConfig
from paddle_adagc.files import TEMPORARY

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


class Fork(NamedTuple):
    """Another run's checkpoint, from which a new run starts."""

    source: Path  # directory of the other run
    step: int | None = None  # step of the checkpoint; None: the newest


class Start:
    """What a run's directory holds, and what the run starts from.

    The first process calls :meth:`read`, :meth:`find` once the model is built,
    and :meth:`write` once the checkpoint's weights are known to fit. The
    options are those of :func:`.run.run_pretraining`.
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
        self._origin: dict[str, Any] = {}  # of a fork
        self._copied: Path | None = None  # checkpoint of another run

    def read(self) -> str | None:
        """Return how the directory's run ended; None if it has steps to make.

        Refuses what does not fit. A run without a step counts as none.
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
        origin = run.get("forked_from", {})
        if run and self._fork:
            self._check_origin(origin)
        inherited = origin.get("step", 0) if self._fork else 0
        has_steps = files.num_steps(directory) > inherited
        if not run or not (has_steps or run.get("status") in files.ENDED):
            return None
        self._earlier = run
        changes = find_changes(_whole(run["config"]), _whole(self._settings))
        if others := [key for key in changes if key not in _FREE]:
            raise FileExistsError(
                f"{directory} holds a run with another config "
                f"({', '.join(others)}): start a new run from its checkpoint "
                "with --fork NEW_DIR, choose another train.output_dir, or give "
                "--overwrite to replace it"
            )
        status = run.get("status")
        if status == "finished":
            self._check_length(run["config"]["train"]["max_steps"])
            if _LENGTH in changes:
                return None
        return status if status in files.ENDED else None

    def _check_origin(self, origin: Mapping[str, Any]) -> None:
        """Refuse a directory that holds another run than this fork."""
        assert self._fork is not None
        source, step = self._fork
        is_same = Path(origin.get("run", "")).resolve() == source.resolve()
        if not is_same or step not in (None, origin["step"]):
            raise FileExistsError(
                f"{self._directory} holds a run that is not this fork: choose "
                "another directory for --fork, or give --overwrite"
            )

    def _check_length(self, step: int) -> None:
        if self._max_steps < step:
            raise ValueError(
                f"train.max_steps={self._max_steps}: the run has made {step} "
                "steps; give at least as many, or --fork an earlier checkpoint"
            )

    def find(self) -> tuple[Path | None, frozenset[str]]:
        """Return the checkpoint to start from; refuse one that does not fit.

        None: the run starts anew. Of ``"clip"`` and ``"optimizer"`` also what
        takes no state from it.
        """
        if self._earlier and (own := last_checkpoint(self._directory)):
            step = read_complete(own)["step"]
            self._check_length(step)
            origin = self._earlier.get("forked_from", {})
            is_first = origin.get("step") == step
            return own, frozenset(origin["afresh"] if is_first else ())
        if self._earlier.get("status") == "finished":
            raise FileNotFoundError(
                f"{self._directory} holds a finished run without a checkpoint, "
                "which cannot be extended: train with train.save_every, or "
                "give --overwrite to start anew"
            )
        self._earlier = {}
        if self._fork is None:
            return None, frozenset()
        self._copied = found = _checkpoint_of(self._fork)
        step = read_complete(found)["step"]
        if self._max_steps <= step:
            raise ValueError(
                f"train.max_steps={self._max_steps}: {found} has made {step} "
                "steps; give more, or --at an earlier checkpoint"
            )
        old = files.read_run_json(found.parent)["config"]
        _refuse_other_names(old, self._settings)
        # Of what keeps its name, other arguments keep the state.
        afresh = [
            section
            for section in ("clip", "optimizer")
            if old[section]["name"] != self._settings[section]["name"]
        ]
        self._origin = {
            "run": str(found.parent.absolute()),
            "step": step,
            "changed": find_changes(_whole(old), _whole(self._settings)),
            "afresh": afresh,
        }
        return found, frozenset(afresh)

    def write(self, facts: dict[str, Any]) -> None:
        """Write ``run.json``; give a fork the other run's checkpoint."""
        if self._earlier:
            other = ", or start a new run with --fork NEW_DIR"
            check_fingerprint(facts["data"], self._earlier, other)
        else:
            _empty(self._directory)
        if self._origin:
            facts = {**facts, "forked_from": self._origin}
        files.update_run_json(
            self._directory, config=self._settings, **facts, status="running"
        )
        if self._copied is not None:
            shutil.copytree(self._copied, self._directory / self._copied.name)


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


def _whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the layout of one process, if it names none."""
    alone = ParallelConfig().model_dump()
    return {**settings, "parallel": {**alone, **settings.get("parallel", {})}}


def _refuse_other_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse a fork whose optimizer would not find its state in the files."""
    layouts = [_whole(config)["parallel"] for config in (old, new)]
    emulates = [c["train"]["precision"] == "float8" for c in (old, new)]
    for key, (before, after) in {
        "parallel": layouts,
        "train.precision=float8": emulates,
    }.items():
        if before != after:
            raise ValueError(
                f"--fork: {key} was {before} and is {after}: a checkpoint's "
                "optimizer state has the names of its own layout; keep it"
            )


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
