# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a run starts: anew, at its own checkpoint, or at another run's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adagc_lab.data.loading import check_fingerprint
from adagc_lab.record import files
from adagc_lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
    restore_run_json,
)
from adagc_lab.train.config import ParallelConfig, RunConfig
from adagc_lab.train.optimizers import learning_rate
from paddle_adagc.files import TEMPORARY

_FREE = (
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep_checkpoints",
    "train.visualdl",
)
_LENGTH = "train.max_steps"
"""Keys that a resumed run may change, with these; others take a fork."""

_WHOLE = "clip.overrides"  # None is a value there, keys have dots

Changes = dict[str, list[Any]]  # dotted key -> old and new value


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
        self._config = config
        self._directory = Path(config.train.output_dir)
        self._overwrites, self._fork = overwrite, fork
        self._earlier: dict[str, Any] = {}  # content of run.json
        self._changes: Changes = {}
        self._resumes = False
        self._facts: dict[str, Any] = {}

    def read(self, *, verify: bool = False) -> str | None:
        """Return how the directory's run ended; None if it has steps to make.

        Refuses what does not fit.
        """
        directory = self._directory
        if not self._overwrites:
            restore_run_json(directory)
        broken_off = {*directory.glob(f".run.json.*{TEMPORARY}")}
        held = {*directory.iterdir()} - broken_off
        if held and not (directory / "run.json").exists():
            raise FileExistsError(
                f"{directory} is not empty and holds no run: choose another "
                "train.output_dir"
            )
        if not self._overwrites:
            self._earlier = files.read_run_json(directory)
        if not self._earlier:
            return None
        origin = _fork_of(self._earlier)
        if self._fork and (
            origin is None
            or origin.source.resolve() != self._fork.source.resolve()
            or self._fork.step not in (None, origin.step)
        ):
            raise FileExistsError(
                f"{directory} holds a run that is not this fork: choose "
                "another directory for --fork, or give --overwrite"
            )
        settings = self._earlier["config"]
        self._changes = find_changes(_whole(settings), _whole(self._settings))
        self._check_changes()
        status = self._earlier.get("status")
        if status == "finished":
            length = settings["train"]["max_steps"]
            self._check_length(length)
            if self._config.train.max_steps > length:
                return None
        if status not in files.ENDED:
            return None
        files.check_record(directory, self._earlier, verify=verify)
        return status

    def find(self) -> tuple[Path | None, frozenset[str]]:
        """Return the checkpoint to start from; refuse one that does not fit.

        None: the run starts anew. Of ``"clip"`` and ``"optimizer"`` also what
        takes no state from it.
        """
        fork = _fork_of(self._earlier) or self._fork
        if not self._overwrites and (own := last_checkpoint(self._directory)):
            self._accept(_saved_step(own))
            self._resumes = True
            return own, frozenset()
        if fork is not None:
            return self._find_fork(fork)
        if self._earlier.get("status") == "finished":
            raise FileNotFoundError(
                f"{self._directory} holds a finished run without a checkpoint, "
                "which cannot be extended: train with train.save_every, or "
                "give --overwrite to start anew"
            )
        return None, frozenset()

    def _find_fork(self, fork: Fork) -> tuple[Path, frozenset[str]]:
        found = {
            _saved_step(path.parent): path.parent
            for path in fork.source.glob(f"checkpoint-*/{COMPLETE}")
        }
        if not fork.source.is_dir():
            raise FileNotFoundError(f"--fork: there is no {fork.source}")
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
        if fault := find_checkpoint_fault(found[step], with_record=False):
            raise ValueError(f"{found[step]} is damaged: {fault}")
        if self._config.train.max_steps <= step:
            raise ValueError(
                f"train.max_steps={self._config.train.max_steps}: "
                f"{found[step]} has made {step} steps; give more, or --at an "
                "earlier checkpoint"
            )
        old, new = files.read_run_json(fork.source)["config"], self._settings
        _refuse_other_names(old, new)
        self._facts["forked_from"] = {
            "run": str(fork.source.absolute()),
            "step": step,
            "changed": find_changes(_whole(old), _whole(new)),
        }
        # Of what keeps its name, other arguments keep the state.
        sections = ("clip", "optimizer")
        afresh = [s for s in sections if old[s]["name"] != new[s]["name"]]
        return found[step], frozenset(afresh)

    def write(self, facts: dict[str, Any], tensor_names: list[str]) -> None:
        """Write ``run.json``; give a fork the record of the steps before it."""
        if self._overwrites:
            _empty(self._directory)
        if self._resumes:
            check_fingerprint(
                facts["data"],
                self._earlier,
                ", or start a new run with --fork NEW_DIR",
            )
        facts = {"config": self._settings, **facts, **self._facts}
        files.update_run_json(self._directory, **facts, status="running")
        if origin := self._facts.get("forked_from"):
            source = Path(origin["run"])
            _copy_record(source, origin["step"], self._directory, tensor_names)

    def undo(self) -> None:
        """Empty the directory again, if it holds a run without a step."""
        if not self._earlier:
            _empty(self._directory)

    def _check_length(self, step: int) -> None:
        if self._config.train.max_steps < step:
            raise ValueError(
                f"train.max_steps={self._config.train.max_steps}: the run has "
                f"made {step} steps; give at least as many, or --fork an "
                "earlier checkpoint"
            )

    def _check_changes(self) -> None:
        """Refuse changes that a resumed run does not accept."""
        accepted = (*_FREE, _LENGTH)
        if forks := [k for k in self._changes if k not in accepted]:
            raise FileExistsError(
                f"{self._directory} holds a run with another config "
                f"({', '.join(forks)}): start a new run from its checkpoint "
                "with --fork NEW_DIR, choose another train.output_dir, or give "
                "--overwrite to replace it"
            )

    def _accept(self, step: int) -> None:
        """Tell the user of the changes; note them for ``run.json``."""
        self._check_length(step)
        changes = {
            key: values
            for key, values in self._changes.items()
            if not key.startswith(_FREE)
        }
        for key, (old, new) in changes.items():
            print(f"from step {step} on: {key}: {old} -> {new}")
            if key == _LENGTH:
                print(_schedule_line(self._config, old, step))
        if changes:
            entry = {"step": step, "changed": changes}
            self._facts["changes"] = [*self._earlier.get("changes", []), entry]


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


def find_changes(old: Any, new: Any, where: str = "") -> Changes:
    """Compare two configs as plain values."""
    are_maps = isinstance(old, Mapping) and isinstance(new, Mapping)
    if not are_maps or where == _WHOLE:
        return {} if old == new else {where: [old, new]}
    found: Changes = {}
    for key in {**old, **new}:
        inner = f"{where}.{key}".lstrip(".")
        found |= find_changes(old.get(key), new.get(key), inner)
    return found


def _schedule_line(config: RunConfig, old_steps: int, step: int) -> str:
    """Say what another ``train.max_steps`` does to the learning rate."""
    schedule, steps = config.schedule, config.train.max_steps
    before = learning_rate(schedule, step, old_steps)
    after = learning_rate(schedule, step, steps)
    return (
        f"the {schedule.kind} schedule now ends at step {steps}; the learning "
        f"rate of step {step} was {before:.3g} and is {after:.3g}"
    )


def _fork_of(run: Mapping[str, Any]) -> Fork | None:
    """Return what a ``run.json`` says that the run was forked from."""
    origin = run.get("forked_from")
    return origin and Fork(Path(origin["run"]), origin["step"])


def _saved_step(checkpoint: Path) -> int:
    """Return the steps that a complete checkpoint has made."""
    return int(json.loads((checkpoint / COMPLETE).read_text())["step"])


def _copy_record(
    source: Path, step: int, target: Path, tensor_names: list[str]
) -> None:
    """Copy a run's first steps; tensors that it has not recorded are NaN."""
    known = source / files.RECORD
    if known.is_dir():  # the fork's own steps supersede later ones
        shutil.copytree(known, target / files.RECORD, dirs_exist_ok=True)
    lines = (source / files.METRICS).read_bytes().splitlines(True)
    (target / files.METRICS).write_bytes(b"".join(lines[:step]))
    names = json.loads((source / files.NAMES).read_text())
    (target / files.NAMES).write_text(json.dumps(tensor_names))
    if names == tensor_names:
        shutil.copy(source / files.TENSORS, target)
        return
    shape = (step, len(files.QUANTITIES), len(tensor_names))
    np.full(shape, np.nan, "<f4").tofile(target / files.TENSORS)


def _empty(directory: Path) -> None:
    """Empty a directory; the directory itself, and its lock, stay."""
    # ``run.json`` last: without it a later --overwrite would know no run.
    for path in sorted(directory.iterdir(), key=lambda p: p.name == "run.json"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
