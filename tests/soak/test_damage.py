# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Damaged files: every file of a run and of its data, in every way.

A damaged run ends with the record of an uninterrupted one, or it is refused by
a message that names the file.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import paddle
import pytest
from adagc_lab.models.safe_pickle import load_pickle
from adagc_lab.record.files import RunRecord
from lab.train.runs import interrupted_at
from safetensors.numpy import load_file, save_file
from soak import runs


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def zero_a_block(path):
    content = bytearray(path.read_bytes())
    start = max(len(content) // 2 - 2048, 0)
    stop = min(start + 4096, len(content))
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
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "flipped bit": flip_a_bit,
    "removed": Path.unlink,
    "zeroed block": zero_a_block,
    "grown": lambda path: os.truncate(path, path.stat().st_size + 64),
    "of another step": take_from_another_step,
    "other shape": change_the_shape,
}
"""The first six can be done to every file."""


def cases(folder):
    """Pairs of a file, relative to ``folder``, and a damage."""
    parts = [*folder.glob("run/checkpoint-*/*")]
    others = (
        p
        for ending in ("run/*.json*", "run/*.f32", "corpus.*")
        for p in folder.glob(ending)
    )
    shaped = ("model_state.pdparams", "optimizer.pdopt", "adagc_state.")
    for path in sorted([*parts, *others]):
        file = str(path.relative_to(folder))
        yield from ((file, damage) for damage in [*DAMAGES][:6])
        if path in parts:
            yield file, "of another step"
        if path in parts and path.name.startswith(shaped):
            yield file, "other shape"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The folder of a run that was ended after its step 10, and its data."""
    work = tmp_path_factory.mktemp("damage") / "work"
    prefix = runs.prepare_text(work)
    config = runs.write_config(work.with_suffix(".yaml"), work / "run", prefix)
    runs.uninterrupted(work.with_name("whole"), prefix)
    with interrupted_at(10):
        runs.run_command(config)
    return work.rename(work.with_name("sound"))


def damaged(sound, file, damage):
    """Damage a copy of the run, give its command again: outcome and text."""
    work = sound.with_name("work")
    shutil.copytree(sound, work)
    DAMAGES[damage](work / file)
    answer = _, text = runs.run_command(
        work.with_suffix(".yaml"), "--verify-first"
    )
    whole = RunRecord.load(sound.with_name("whole"))
    outcome = runs.judge(f"{file}: {damage}", answer, work / "run", whole)
    shutil.rmtree(work)
    return outcome, text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "damage", "outcome"),
    [
        ("run/checkpoint-8/model_state.pdparams", "other shape", "fell back"),
        ("run/checkpoint-4/rng_state.pth", "empty", "resumed"),
        ("corpus.bin", "zeroed block", "refused"),
    ],
)
def test_a_damaged_file(file, damage, outcome, sound):
    found, text = damaged(sound, file, damage)
    assert found == outcome, text
    named = "the data" if file.startswith("corpus") else Path(file).name
    assert named in text or outcome == "resumed"


@pytest.mark.slow
@pytest.mark.long
def test_files_damaged_in_every_way(sound):
    """40 cases; all of them with ``SOAK_REPEAT=5``."""
    every = np.random.default_rng(0).permutation([*cases(sound)]).tolist()
    assert len(every) > 180
    for case in every[: 40 * runs.REPEAT]:
        damaged(sound, *case)
