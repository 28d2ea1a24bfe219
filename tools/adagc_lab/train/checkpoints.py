"""Checkpoints that are whole: marked last, checked before they are loaded.

``complete.json`` is written once everything that it stands for is on the disk.
It holds the step, and the size and SHA-256 of every file of the checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paddle
from paddle import nn

from adagc_lab import checksums
from adagc_lab.storage import atomic_write_json
from paddle_adagc.files import sync

COMPLETE = "complete.json"
"""File that is written last: a checkpoint without it is incomplete."""

_PICKLED = ("*.pdparams", "*.pdopt", "*.pth")
"""Files that PaddleNLP's Trainer may unpickle, those of other ranks too."""

_ALLOWED = {
    *(
        (f"numpy{core}.multiarray", "_reconstruct")
        for core in (".core", "._core")
    ),
    *((f"numpy{core}.multiarray", "scalar") for core in (".core", "._core")),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("paddle.base.libpaddle", "GeneratorState"),
}
"""All that ``paddle.save`` needs for tensors and random states."""

logger = logging.getLogger(__name__)


class _Checker(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(
                f"it asks for {module}.{name}, which no tensors need and which "
                "could run a stranger's code"
            )
        return super().find_class(module, name)


def check_pickle(path: str | os.PathLike[str]) -> Any:
    """Read a file of ``paddle.save``; refuse all but arrays, run nothing."""
    with open(path, "rb") as file:
        try:
            return _Checker(file).load()
        except Exception as error:  # wrong bytes raise anything
            raise ValueError(f"{path} is refused: {error!s:.300}") from error


def load_pickle(path: str | os.PathLike[str]) -> Any:
    """Check a file, then load it; nothing else here calls ``paddle.load``."""
    check_pickle(path)
    return paddle.load(os.fspath(path))


def complete_checkpoint(checkpoint: Path, facts: Mapping[str, Any]) -> None:
    """Put a checkpoint's files on the disk, then mark it complete.

    ``facts``: ``step`` and what else a resumed run needs.
    """
    paths = [p for p in checkpoint.rglob("*") if p.name != COMPLETE]
    names = [str(p.relative_to(checkpoint)) for p in paths if p.is_file()]
    files = checksums.describe(checkpoint, sorted(names))
    for folder in [p for p in paths if p.is_dir()]:
        sync(folder)
    sync(checkpoint.parent)
    content = checksums.sealed({**facts, "files": files})
    atomic_write_json(checkpoint / COMPLETE, content, indent=None)


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


def find_checkpoint_fault(checkpoint: Path) -> str | None:
    """Return why a complete checkpoint must not be loaded; None: nothing.

    Pickles that hold code are refused, and what would lead to other files.
    """
    try:
        facts = read_complete(checkpoint)
        if fault := checksums.find_fault(checkpoint, facts["files"]):
            return fault
        for path in checkpoint.rglob("*.index.json"):
            raise ValueError(
                f"{path.name} is refused: PaddleNLP would load the files that "
                "it names, and no checkpoint of ours has one"
            )
        for kind in _PICKLED:
            for path in sorted(checkpoint.rglob(kind)):
                check_pickle(path)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def checkpoints(output_dir: Path) -> list[Path]:
    """Return all folders ``checkpoint-STEP`` of a run, the newest first."""
    found = [
        path
        for path in output_dir.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdecimal()
    ]
    return sorted(found, key=_step, reverse=True)


def last_checkpoint(output_dir: Path, *, resumes: bool = True) -> Path | None:
    """Return the newest whole checkpoint; remove incomplete ones.

    Damaged ones are named in the log, or in a ValueError if all are; they stay
    until the run saves the same step again. A caller that does not resume the
    run changes nothing in it.
    """
    found, notes, whole = checkpoints(output_dir), [], None
    incomplete = [path for path in found if not (path / COMPLETE).exists()]
    for path in found:
        if path in incomplete:
            notes.append(f"{path.name} was not completed")
        elif fault := find_checkpoint_fault(path):
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
    """Load this rank's weights, of a checked checkpoint in the same layout.

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
