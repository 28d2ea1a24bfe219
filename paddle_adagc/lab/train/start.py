# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a run starts: anew, at its own checkpoint, or at another run's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paddle_adagc.lab.record import files
from paddle_adagc.lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
    restore_run_json,
)
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.optimizers import learning_rate
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.tasks import make_task

_KINDS = {
    "free": (
        "train.log_every",
        "train.eval_every",
        "train.save_every",
        "train.keep_checkpoints",
        "train.visualdl",
    ),
    "length": ("train.max_steps",),
    "layout": (
        "train.batch_size",
        "train.gradient_accumulation_steps",
        "parallel",
    ),
}
"""What it takes to accept a change, by the keys' beginnings; else a fork."""

_WHOLE = "clip.overrides"  # None is a value there, keys have dots


class Fork(NamedTuple):
    """Another run's checkpoint, from which a new run starts."""

    source: Path  # directory of the other run
    step: int | None = None  # step of the checkpoint; None: the newest


class Origin(NamedTuple):
    """What a run starts from; without a checkpoint it starts anew."""

    checkpoint: Path | None = None
    is_fork: bool = False
    """It is another run's; its weights are loaded and checked first."""

    afresh: frozenset[str] = frozenset()
    """Of ``"clip"`` and ``"optimizer"``, what takes no state from it."""


class Start:
    """What a run's directory holds, and what the run starts from.

    The first process calls :meth:`read`, :meth:`find` once the model is built,
    and :meth:`write` once a fork's weights are known to fit. The options are
    those of :func:`.run.run_pretraining`.
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
        self._config, self._directory = config, Path(config.train.output_dir)
        self._overwrites, self._fork = overwrite, fork
        self._earlier: dict[str, Any] = {}  # content of run.json
        self._changes: list[Change] = []
        self._origin = Origin()
        self._facts: dict[str, Any] = {}

    def read(self, *, verify: bool = False) -> str | None:
        """Return how the directory's run ended; None if it has steps to make.

        Refuses what does not fit.
        """
        directory = self._directory
        if not self._overwrites:
            restore_run_json(directory)
        if not (directory / "run.json").exists() and any(directory.iterdir()):
            raise FileExistsError(
                f"{directory} is not empty and holds no run: choose another "
                "train.output_dir"
            )
        if not self._overwrites:
            self._earlier = files.read_run_json(directory)
        if not self._earlier:
            return None
        self._check_fork()
        settings = self._earlier["config"]
        self._changes = find_changes(settings, self._settings)
        self._check_changes(settings)
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

    def find(self) -> Origin:
        """Find the checkpoint to start from; refuse one that does not fit."""
        fork = _fork_of(self._earlier) or self._fork
        checkpoint = None
        if not self._overwrites:
            checkpoint = last_checkpoint(self._directory)
        if checkpoint is not None:
            self._accept(_saved_step(checkpoint))
            self._origin = Origin(checkpoint)
        elif fork is not None:
            self._origin = self._find_fork(fork)
        elif self._earlier.get("status") == "finished":
            raise FileNotFoundError(
                f"{self._directory} holds a finished run without a checkpoint, "
                "which cannot be extended: train with train.save_every, or "
                "give --overwrite to start anew"
            )
        return self._origin

    def _find_fork(self, fork: Fork) -> Origin:
        checkpoint = _forked_checkpoint(fork)
        old, new = files.read_run_json(fork.source)["config"], self._settings
        step = _saved_step(checkpoint)
        self._check_length(step)
        self._facts["forked_from"] = {
            "run": str(fork.source),
            "step": step,
            "changed": _old_and_new(find_changes(old, new)),
        }
        # Of what keeps its name, other arguments keep the state.
        afresh = [
            section
            for section in ("clip", "optimizer")
            if old[section]["name"] != new[section]["name"]
        ]
        return Origin(checkpoint, True, frozenset(afresh))

    def write(self, facts: dict[str, Any], tensor_names: list[str]) -> None:
        """Write ``run.json``; give a fork the record of the steps before it."""
        if self._overwrites:
            _empty(self._directory)
        checkpoint, is_fork, _ = self._origin
        old, new = self._earlier.get("data", {}), facts["data"]
        is_other = any(new.get(key) != old[key] for key in old)
        if checkpoint and not is_fork and is_other:
            raise FileExistsError(
                f"{self._directory} holds a run on other data ({old}, now "
                f"{new}): put the data back, or start a new run with --fork "
                "NEW_DIR"
            )
        if origin := self._facts.get("forked_from"):
            source = Path(origin["run"])
            _copy_record(source, origin["step"], self._directory, tensor_names)
        facts = {"config": self._settings, **facts, **self._facts}
        files.update_run_json(self._directory, **facts, status="running")

    def _check_fork(self) -> None:
        """Refuse a directory that holds another run than this fork."""
        fork, held = self._fork, _fork_of(self._earlier)
        if fork and (
            held is None
            or held.source != fork.source
            or fork.step not in (None, held.step)
        ):
            raise FileExistsError(
                f"{self._directory} holds a run that is not this fork: choose "
                "another directory for --fork, or give --overwrite"
            )

    def _check_length(self, step: int) -> None:
        if self._config.train.max_steps < step:
            raise ValueError(
                f"train.max_steps={self._config.train.max_steps}: the run has "
                f"made {step} steps; give at least as many, or --fork an "
                "earlier checkpoint"
            )

    def _check_changes(self, settings: Mapping[str, Any]) -> None:
        """Refuse changes that a resumed run does not accept."""
        by_kind: dict[str, list[Change]] = {}
        for change in self._changes:
            by_kind.setdefault(change.kind, []).append(change)
        if forks := by_kind.get("fork"):
            keys = ", ".join(change.key for change in forks)
            raise FileExistsError(
                f"{self._directory} holds a run with another config ({keys}): "
                "start a new run from its checkpoint with --fork NEW_DIR, "
                "choose another train.output_dir, or give --overwrite to "
                "replace it"
            )
        layout = by_kind.get("layout")
        if layout and (remedy := _layout_remedy(settings, self._config)):
            raise FileExistsError(
                f"{self._directory} holds a run with other batches "
                f"({', '.join(map(str, layout))}): {remedy}, or start a new "
                "run from its checkpoint with --fork NEW_DIR"
            )

    def _accept(self, step: int) -> None:
        """Tell the user of the changes; note them for ``run.json``."""
        self._check_length(step)
        changes = [change for change in self._changes if change.kind != "free"]
        for change in changes:
            print(f"from step {step} on: {change}")
            if change.kind == "length":
                print(_schedule_line(self._config, change.old, step))
        if changes:
            entry = {"step": step, "changed": _old_and_new(changes)}
            self._facts["changes"] = [*self._earlier.get("changes", []), entry]


class Change(NamedTuple):
    """A setting with another value than the run was made with."""

    key: str  # dotted, as on the command line
    old: Any
    new: Any

    @property
    def kind(self) -> str:
        """What it takes to accept the change: see ``_KINDS``."""
        for kind, keys in _KINDS.items():
            if self.key.startswith(keys):
                return kind
        return "fork"

    def __str__(self) -> str:
        """Key, old and new value."""
        return f"{self.key}: {self.old} -> {self.new}"


def find_changes(old: Any, new: Any, where: str = "") -> list[Change]:
    """Compare two configs as plain values."""
    are_maps = isinstance(old, Mapping) and isinstance(new, Mapping)
    if not are_maps or where == _WHOLE:
        return [] if old == new else [Change(where, old, new)]
    return [
        change
        for key in {**old, **new}
        for change in find_changes(
            old.get(key), new.get(key), f"{where}.{key}".lstrip(".")
        )
    ]


def _old_and_new(changes: Sequence[Change]) -> dict[str, list[Any]]:
    return {change.key: [change.old, change.new] for change in changes}


def _layout_remedy(
    settings: Mapping[str, Any], config: RunConfig
) -> str | None:
    """Say what of the earlier settings to keep so that only rounding differs.

    None if nothing else does.
    """
    directory = config.train.output_dir
    train = {**settings["train"], "output_dir": directory}
    old = parse_config({**settings, "train": train})
    num_parts = old.train.gradient_accumulation_steps
    if old.global_batch != config.global_batch:
        return (
            f"keep the global batch of {old.global_batch}, now "
            f"{config.global_batch}"
        )
    if (
        num_parts != config.train.gradient_accumulation_steps
        and not make_task(config).is_mean_of_samples
    ):
        return (
            f"keep train.gradient_accumulation_steps={num_parts}, since "
            "experts are balanced over a micro-batch"
        )
    num_ranks = old.parallel.num_data_ranks
    if (
        config.data.kind == "webdataset"
        and num_ranks != config.parallel.num_data_ranks
    ):
        return f"keep {num_ranks} ranks that read data, which order the shards"
    return None


def _schedule_line(config: RunConfig, old_steps: int, step: int) -> str:
    """Say what another ``train.max_steps`` does to the learning rate."""
    schedule, steps = config.schedule, config.train.max_steps
    before = learning_rate(schedule, step, old_steps)
    after = learning_rate(schedule, step, steps)
    rate = f"changes from {before:.3g} to {after:.3g}"
    if before == after:
        rate = f"stays {after:.3g}"
    return (
        f"the {schedule.kind} schedule now ends at step {steps}; the learning "
        f"rate of step {step} {rate}"
    )


def _fork_of(run: Mapping[str, Any]) -> Fork | None:
    """Return what a ``run.json`` says that the run was forked from."""
    origin = run.get("forked_from")
    return origin and Fork(Path(origin["run"]), origin["step"])


def _forked_checkpoint(fork: Fork) -> Path:
    found = {
        _saved_step(path.parent): path.parent
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
    if fault := find_checkpoint_fault(found[step], with_record=False):
        raise ValueError(f"{found[step]} is damaged: {fault}")
    return found[step]


def _saved_step(checkpoint: Path) -> int:
    """Return the steps that a complete checkpoint has made."""
    return int(json.loads((checkpoint / COMPLETE).read_text())["step"])


def _copy_record(
    source: Path, step: int, target: Path, tensor_names: list[str]
) -> None:
    """Copy a run's first steps; tensors that it has not recorded are NaN."""
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
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
