# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run's directory holds already, and what the run starts from."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.lab.record.files import ENDED, read_run_json, update_run_json
from paddle_adagc.lab.train.changes import (
    Change,
    check_changes,
    find_changes,
    schedule_line,
)
from paddle_adagc.lab.train.checkpoints import last_checkpoint, restore_run_json
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.fork import Fork, saved_step
from paddle_adagc.lab.train.resharding import check_layout_file


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks for besides the config."""

    overwrite: bool = False
    """Replace the run that the directory holds."""

    change_data: bool = False
    """Resume with other data."""

    fork: Fork | None = None
    """Start from this checkpoint of another run."""


@dataclasses.dataclass(frozen=True)
class Earlier:
    """The run that the directory holds."""

    run: dict[str, Any]
    """Its ``run.json``; empty if there is no run."""

    changes: Sequence[Change] = ()
    """Settings that differ, all of them accepted."""

    def length(self, config: RunConfig) -> int:
        """Return its ``train.max_steps``."""
        lengths = [c.old for c in self.changes if c.kind == "length"]
        return lengths[0] if lengths else config.train.max_steps

    def status(self, config: RunConfig) -> str | None:
        """Return how it ended; None if it has steps to make."""
        status = self.run.get("status")
        if status == "finished" and config.train.max_steps > self.length(
            config
        ):
            return None
        return status if status in ENDED else None


@dataclasses.dataclass(frozen=True)
class Start:
    """Where the run starts; nothing has been written so far."""

    facts: dict[str, Any]
    """Entries of ``run.json`` about it."""

    checkpoint: Path | None = None
    """Of the run itself, or of the one that it forks."""

    is_fork: bool = False
    """Whether it is another run's; its weights are loaded and checked first."""

    starts_afresh: frozenset[str] = frozenset()
    """See ``ResumableTrainer``."""


def read_earlier(
    directory: Path, values: dict[str, Any], config: RunConfig, request: Request
) -> Earlier:
    """Read the run that a directory holds.

    Args:
        directory: The run's.
        values: The config as ``run.json`` holds it.
        config: The config.
        request: See :class:`Request`.

    Raises:
        FileExistsError: It holds something else, or a run that does not accept
            the changes.
        ValueError: The run has made more steps than it should.
    """
    if not request.overwrite:
        restore_run_json(directory)
    if not (directory / "run.json").exists():
        if any(directory.iterdir()):
            raise FileExistsError(
                f"{directory} is not empty and holds no run: choose another "
                "train.output_dir"
            )
        return Earlier({})
    if request.overwrite:
        return Earlier({})
    run = read_run_json(directory)
    if request.fork is not None:
        request.fork.check_run(directory, run)
    changes = find_changes(run.get("config", {}), values)
    settings = run.get("config", {})
    check_changes(changes, settings, config, request.change_data)
    earlier = Earlier(run, changes)
    done = earlier.length(config) if run.get("status") == "finished" else 0
    _check_length(config, done)
    return earlier


def find_start(
    directory: Path,
    earlier: Earlier,
    values: dict[str, Any],
    config: RunConfig,
    request: Request,
) -> Start:
    """Find what the run starts from.

    Args:
        directory: The run's.
        earlier: The run that it holds.
        values: The config as ``run.json`` holds it.
        config: The config.
        request: See :class:`Request`.

    Raises:
        FileNotFoundError: There is no checkpoint to extend or to fork.
        ValueError: The checkpoint does not fit the layout or the length.
    """
    checkpoint = None
    if not request.overwrite:
        checkpoint = last_checkpoint(directory)
    fork = Fork.of(earlier.run) or request.fork
    if checkpoint is not None:
        step = saved_step(checkpoint)
        _check_length(config, step)
        if any(c.key.startswith("parallel") for c in earlier.changes):
            check_layout_file(checkpoint)
        return Start(_accepted(earlier, config, step), checkpoint)
    if fork is not None:
        return _fork_start(fork, config, values)
    if earlier.run.get("status") == "finished":
        raise FileNotFoundError(
            f"{directory} holds a finished run without a checkpoint, which "
            "cannot be extended: train with train.save_every, or give "
            "--overwrite to start anew"
        )
    return Start({})


def write_start(
    directory: Path,
    earlier: Earlier,
    request: Request,
    start: Start,
    facts: dict[str, Any],
    tensor_names: list[str],
) -> None:
    """Write ``run.json``; give a fork the record of the steps before it.

    Args:
        directory: The run's.
        earlier: The run that it holds.
        request: See :class:`Request`.
        start: What :func:`find_start` found.
        facts: Content of ``run.json``.
        tensor_names: Tensors that are recorded.

    Raises:
        FileExistsError: The run was on other data.
    """
    if request.overwrite:
        _empty(directory)
    own = start.checkpoint is not None and not start.is_fork
    if own and not request.change_data:
        _check_data(directory, earlier.run.get("data", {}), facts["data"])
    if fork := Fork.of(start.facts):
        fork.copy_record(directory, tensor_names)
    update_run_json(directory, **facts, **start.facts, status="running")


def _fork_start(fork: Fork, config: RunConfig, values: dict[str, Any]) -> Start:
    checkpoint = fork.checkpoint()
    _check_length(config, saved_step(checkpoint))
    origin = fork.facts(values)
    if any(key.startswith("parallel") for key in origin["changed"]):
        check_layout_file(checkpoint)
    return Start(
        {"forked_from": origin},
        checkpoint,
        True,
        frozenset(
            section
            for section in ("clip", "optimizer")
            if not fork.keeps(config, section)
        ),
    )


def _check_length(config: RunConfig, step: int) -> None:
    if config.train.max_steps < step:
        raise ValueError(
            f"train.max_steps={config.train.max_steps}: the run has made "
            f"{step} steps; give at least as many, or --fork an earlier "
            "checkpoint"
        )


def _check_data(
    directory: Path, old: dict[str, Any], new: dict[str, Any]
) -> None:
    if any(new.get(k) != old[k] for k in old):
        raise FileExistsError(
            f"{directory} holds a run on other data ({old}, now {new}): put "
            "the data back, or give --change-data to resume with these"
        )


def _accepted(earlier: Earlier, config: RunConfig, step: int) -> dict[str, Any]:
    """Tell the user of accepted changes; return them for ``run.json``."""
    changes = [change for change in earlier.changes if change.kind != "free"]
    if not changes:
        return {}
    for change in changes:
        print(f"from step {step} on: {change}")
        if change.kind == "length":
            print(schedule_line(config, change.old, step))
    entry = {"step": step, "changed": {c.key: [c.old, c.new] for c in changes}}
    return {"changes": [*earlier.run.get("changes", []), entry]}


def _empty(directory: Path) -> None:
    """Empty a directory; the directory itself, and its lock, stay."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
