# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Damaged files: every file of a run and of its data, in every way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddle_adagc.lab.models.safe_pickle import load_pickle
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.soak.runs import (
    Main,
    Trial,
    judge,
    prepare_text,
    run_command,
    stopped_at,
    values,
    write_config,
)

_ZEROED = 4096
_RECORD = ("run.json", "metrics.jsonl", "tensors.f32", "tensors.json")
_DATA = ("corpus.bin", "corpus.idx", "corpus.manifest.json")
_SHAPED = ("model_state.pdparams", "optimizer.pdopt", "adagc_state.safetensors")


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _zeroed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    start = max(len(content) // 2 - _ZEROED // 2, 0)
    stop = min(start + _ZEROED, len(content))
    content[start:stop] = bytes(stop - start)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": _truncated,
    "empty": lambda path: path.write_bytes(b""),
    "flipped bit": _flipped,
    "removed": Path.unlink,
    "zeroed block": _zeroed,
    "grown": lambda path: path.write_bytes(path.read_bytes() + bytes(64)),
}
"""Kinds of damage that every file gets."""


def _other_step(path: Path) -> None:
    """Replace a file of one checkpoint by that of the other."""
    step = {"checkpoint-4": "checkpoint-8", "checkpoint-8": "checkpoint-4"}
    shutil.copy(path.parent.with_name(step[path.parent.name]) / path.name, path)


def _other_shape(path: Path) -> None:
    """Cut the last number off the first matrix, or off a clip's state."""
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file, save_file

        vectors = {name: v[:-1] for name, v in load_file(path).items()}
        save_file(vectors, path, {"format": "paddle_adagc.state.3"})
        return
    state = load_pickle(path)
    name = next(k for k, v in state.items() if getattr(v, "ndim", 0) == 2)
    state[name] = state[name][:-1]
    paddle.save(state, str(path))


def cases(folder: Path) -> list[tuple[str, str]]:
    """Return pairs of a file, relative to ``folder``, and a damage."""
    checkpoints = sorted((folder / "run").glob("checkpoint-*"))
    parts = [
        str(path.relative_to(folder))
        for checkpoint in checkpoints
        for path in sorted(checkpoint.iterdir())
    ]
    record = [f"run/{name}" for name in _RECORD]
    found = [(f, d) for f in [*parts, *record, *_DATA] for d in DAMAGES]
    found += [(file, "of another step") for file in parts]
    return found + [
        (str((checkpoint / name).relative_to(folder)), "other shape")
        for checkpoint in checkpoints
        for name in _SHAPED
    ]


def damage_trials(
    folder: Path, main: Main, count: int, seed: int
) -> Iterator[Trial]:
    """Damage one file, give the run's command again, and compare.

    Args:
        folder: Empty folder to work in.
        main: The command.
        count: Number of cases, drawn at random if it is not all of them.
        seed: Of the draw.
    """
    sound = folder / "sound"
    sound.mkdir()
    prefix = prepare_text(sound)
    whole_file = write_config(
        folder / "whole.yaml", values(folder / "whole", prefix)
    )
    run_command(main, whole_file)
    whole = RunRecord.load(folder / "whole")
    work = folder / "work"
    config = values(work / "run", work / "corpus")
    config_file = write_config(folder / "work.yaml", config)
    shutil.copytree(sound, work)
    with stopped_at(10):
        run_command(main, config_file)
    shutil.rmtree(sound)
    work.rename(sound)
    damages = {
        **DAMAGES,
        "of another step": _other_step,
        "other shape": _other_shape,
    }
    rng = np.random.default_rng(seed)
    order = rng.permutation(cases(sound))[:count].tolist()
    for file, damage in sorted(order):
        shutil.copytree(sound, work)
        damages[damage](work / file)
        answer = run_command(main, config_file, "--verify")
        yield judge("damage", f"{file}: {damage}", answer, work / "run", whole)
        shutil.rmtree(work)
