# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are whole: marked last, checked before they are loaded.

``complete.json`` is written once everything that it stands for is on the disk.
It holds the step, and the size and SHA-256 of every file of the checkpoint and
of the run's record up to that step.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddle import nn

from adagc_lab import checksums
from adagc_lab.models.safe_pickle import check_pickle, load_pickle
from adagc_lab.record.files import read_run_json
from adagc_lab.storage import atomic_write_json
from paddle_adagc.files import sync

COMPLETE = "complete.json"
"""File that is written last: a checkpoint without it is incomplete."""

_PICKLED = ("*.pdparams", "*.pdopt", "*.pth")
"""Files that a resumed run may unpickle, those of other ranks too."""

logger = logging.getLogger(__name__)


def complete_checkpoint(
    checkpoint: Path, facts: Mapping[str, Any], record: checksums.Description
) -> None:
    """Put a checkpoint's files on the disk, then mark it complete.

    ``facts``: ``step`` and what else a resumed run needs. ``record``: the run's
    record up to this step, which is on the disk.
    """
    paths = [p for p in checkpoint.rglob("*") if p.name != COMPLETE]
    names = [str(p.relative_to(checkpoint)) for p in paths if p.is_file()]
    facts = {
        **facts,
        "run": read_run_json(checkpoint.parent),
        "record": record,
        "files": checksums.describe(checkpoint, sorted(names)),
    }
    for folder in [p for p in paths if p.is_dir()]:
        sync(folder)
    sync(checkpoint.parent)
    atomic_write_json(
        checkpoint / COMPLETE, checksums.sealed(facts), indent=None
    )


def read_complete(checkpoint: Path) -> dict[str, Any]:
    """Read ``complete.json``; a ValueError names what is damaged."""
    try:
        facts = json.loads((checkpoint / COMPLETE).read_bytes())
        if not isinstance(facts, dict):
            raise ValueError(f"a {type(facts).__name__}, not an object")
        checksums.check_seal(facts)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{COMPLETE}: {error}") from error
    return facts


def find_checkpoint_fault(
    checkpoint: Path, *, verify: bool = True, with_record: bool = True
) -> str | None:
    """Return why a complete checkpoint must not be loaded; None: nothing.

    Without ``verify`` sizes alone are compared; ``with_record`` checks the
    run's record up to its step, too.
    """
    try:
        facts = read_complete(checkpoint)
        fault = checksums.find_fault(checkpoint, facts["files"], verify=verify)
        if fault is None and with_record:
            if facts["step"] != _step(checkpoint):
                return f"{COMPLETE} is of step {facts['step']}"
            fault = checksums.find_fault(
                checkpoint.parent, facts["record"], may_be_longer=True
            )
        if fault is None and verify:
            _refuse_code(checkpoint)
    except (OSError, RecursionError, ValueError) as error:
        return str(error)
    return fault


def _refuse_code(checkpoint: Path) -> None:
    """Refuse pickles that hold code, and what would lead to other files."""
    for path in checkpoint.rglob("*.index.json"):
        raise ValueError(
            f"{path.name} is refused: PaddleNLP would load the files that it "
            "names, and no checkpoint of ours has one"
        )
    for path in sorted(p for kind in _PICKLED for p in checkpoint.rglob(kind)):
        check_pickle(path)


def checkpoints(output_dir: Path) -> list[Path]:
    """Return all folders ``checkpoint-STEP`` of a run, the newest first."""
    found = [
        path
        for path in output_dir.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdecimal()
    ]
    return sorted(found, key=_step, reverse=True)


def last_checkpoint(
    output_dir: Path, *, resumes: bool = True, verify: bool = True
) -> Path | None:
    """Return the newest whole checkpoint; remove incomplete ones.

    Damaged ones are named in the log, or in a ValueError if all are; they stay
    until the run saves the same step again. A caller that does not resume the
    run changes nothing in it, and needs no record.
    """
    found, notes, whole = checkpoints(output_dir), [], None
    incomplete = [path for path in found if not (path / COMPLETE).exists()]
    for path in found:
        if path in incomplete:
            notes.append(f"{path.name} was not completed")
        elif fault := find_checkpoint_fault(
            path, verify=verify, with_record=resumes
        ):
            notes.append(f"{path.name} is damaged ({fault})")
        else:
            whole = path
            break
    if whole is None and len(notes) > len(incomplete):
        raise ValueError(
            f"{output_dir} holds no whole checkpoint: {'; '.join(notes)}: put "
            "the files back, or start anew with --overwrite"
        )
    for path in incomplete if resumes else []:
        remove_checkpoint(path)
    if whole is not None and notes:
        text = "; ".join(notes)
        logger.warning("%s: taking %s", text, whole.name)
    return whole


def load_weights(
    model: nn.Layer, checkpoint: Path, suffix: str | None = None
) -> None:
    """Load this rank's weights, of a checkpoint in the same layout.

    ``suffix`` is the rank's in the name of its file. A ValueError names weights
    that are another model's, or of another layout.
    """
    file = checkpoint / f"model_state.{suffix + '.' if suffix else ''}pdparams"
    if not file.exists():
        raise ValueError(
            f"{checkpoint} has no {file.name}: it is of another layout, keep "
            "the run's parallel section"
        )
    own, saved = model.state_dict(), load_pickle(file)
    for key in sorted(own.keys() | saved.keys()):
        found, wanted = (
            tuple(state[key].shape) if key in state else "missing"
            for state in (saved, own)
        )
        if found != wanted:
            raise ValueError(
                f"{file} holds the weights of another model: {key} is {found} "
                f"and should be {wanted}"
            )
    model.set_state_dict(
        {key: saved[key].astype(tensor.dtype) for key, tensor in own.items()}
    )


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint, its mark first: what is left is incomplete."""
    if checkpoint.exists():
        (checkpoint / COMPLETE).unlink(missing_ok=True)
        sync(checkpoint)
        shutil.rmtree(checkpoint)


def rotate_checkpoints(output_dir: Path, step: int, keep: int) -> None:
    """Remove all complete checkpoints up to a step but the newest ones."""
    complete = [
        path
        for path in checkpoints(output_dir)
        if (path / COMPLETE).exists() and _step(path) <= step
    ]
    for path in complete[keep:]:
        remove_checkpoint(path)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def restore_run_json(directory: Path) -> None:
    """Write a missing or damaged ``run.json`` from the newest checkpoint."""
    try:
        if read_run_json(directory):
            return
        fault = "missing"
    except ValueError:
        fault = "damaged"
    for path in checkpoints(directory):
        try:
            run = read_complete(path)["run"]
        except (OSError, ValueError):
            continue
        target = directory / "run.json"
        atomic_write_json(target, run, indent=1)
        logger.warning("%s is %s: taken from %s", target, fault, path.name)
        return
