# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Damaged files: every file of a run and of its data, in every way.

A damaged run ends with the record of an uninterrupted one, or it is refused by
a message that names the file.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import paddle
import pytest
from safetensors.numpy import load_file, save_file
from soak.runs import (
    at_step,
    interrupt,
    judge,
    prepare_text,
    run_command,
    uninterrupted,
    write_config,
)
from soak.trials import LOST

from paddle_adagc.lab.models.safe_pickle import load_pickle
from paddle_adagc.lab.record.files import RunRecord

_ZEROED = 4096
_RECORD = ("run.json", "metrics.jsonl", "tensors.f32", "tensors.json")
_DATA = ("corpus.bin", "corpus.idx", "corpus.manifest.json")
_SHAPED = ("model_state.pdparams", "optimizer.pdopt", "adagc_state.safetensors")


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def zero_a_block(path):
    content = bytearray(path.read_bytes())
    start = max(len(content) // 2 - _ZEROED // 2, 0)
    stop = min(start + _ZEROED, len(content))
    content[start:stop] = bytes(stop - start)
    path.write_bytes(content)


def take_from_another_step(path):
    """Replace a file of one checkpoint by that of the other."""
    step = {"checkpoint-4": "checkpoint-8", "checkpoint-8": "checkpoint-4"}
    shutil.copy(path.parent.with_name(step[path.parent.name]) / path.name, path)


def change_the_shape(path):
    """Cut the last number off the first matrix, or off a clip's state."""
    if path.suffix == ".safetensors":
        vectors = {name: v[:-1] for name, v in load_file(path).items()}
        save_file(vectors, path, {"format": "paddle_adagc.state.3"})
        return
    state = load_pickle(path)
    name = next(k for k, v in state.items() if getattr(v, "ndim", 0) == 2)
    state[name] = state[name][:-1]
    paddle.save(state, str(path))


DAMAGES = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "flipped bit": flip_a_bit,
    "removed": Path.unlink,
    "zeroed block": zero_a_block,
    "grown": lambda path: path.write_bytes(path.read_bytes() + bytes(64)),
    "of another step": take_from_another_step,
    "other shape": change_the_shape,
}
"""The first six can be done to every file."""


class Stopped(NamedTuple):
    """A run that was ended after its step 10, with checkpoints of 4 and 8."""

    folder: Path
    config: Path
    whole: RunRecord

    def cases(self):
        """Pairs of a file and a damage."""
        checkpoints = sorted((self.folder / "sound/run").glob("checkpoint-*"))
        parts = [
            f"run/{checkpoint.name}/{path.name}"
            for checkpoint in checkpoints
            for path in sorted(checkpoint.iterdir())
        ]
        record = [f"run/{name}" for name in _RECORD]
        for file in (*parts, *record, *_DATA):
            for damage in [*DAMAGES][:6]:
                yield file, damage
        for file in parts:
            yield file, "of another step"
            if file.endswith(_SHAPED):
                yield file, "other shape"

    def trial(self, file, damage):
        """Damage a copy of the run and give its command again."""
        work = self.folder / "work"
        shutil.copytree(self.folder / "sound", work)
        DAMAGES[damage](work / file)
        answer = run_command(self.config, "--verify")
        case = f"{file}: {damage}"
        trial = judge("damage", case, answer, work / "run", self.whole)
        shutil.rmtree(work)
        return trial


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    work = folder / "work"
    prefix = prepare_text(work)
    whole = uninterrupted(folder / "whole", prefix)
    config = write_config(folder / "work.yaml", work / "run", prefix)
    with at_step(10, interrupt):
        run_command(config)
    work.rename(folder / "sound")
    return Stopped(folder, config, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "damage", "outcome"),
    [
        ("run/checkpoint-8/optimizer.pdopt", "flipped bit", "fell back"),
        ("run/checkpoint-8/model_state.pdparams", "other shape", "fell back"),
        ("run/run.json", "truncated", "fell back"),
        ("run/checkpoint-4/rng_state.pth", "empty", "resumed"),
        ("corpus.bin", "zeroed block", "refused"),
        ("run/metrics.jsonl", "removed", "refused"),
    ],
)
def test_a_damaged_file(file, damage, outcome, stopped):
    trial = stopped.trial(file, damage)
    assert trial.outcome == outcome, trial.message
    assert Path(file).name in trial.message or outcome == "resumed"


@pytest.mark.slow
@pytest.mark.long
def test_every_damage_of_every_file(stopped, trials):
    found = [stopped.trial(*case) for case in stopped.cases()]
    trials += found
    assert len(found) > 180
    assert not [trial for trial in found if trial.outcome in LOST]
