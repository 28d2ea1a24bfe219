# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: durable, checked, and replaced by the one before."""

import json
import pickle
import shutil

import paddle
import pytest
from adagc_lab.checksums import describe, sealed
from adagc_lab.record.files import RunRecord
from adagc_lab.train import checkpoints
from adagc_lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
    load_weights,
    read_complete,
)
from helpers import Attack
from lab.train.runs import assert_same, interrupted_at, make_values, run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a whole run, and of one with checkpoints 4 and 8 to resume."""
    folder = tmp_path_factory.mktemp("runs")
    run(make_values(folder / "whole", save_every=4))
    with interrupted_at(10):
        run(make_values(folder / "stopped", save_every=4))
    return folder


@pytest.fixture
def stopped(runs, tmp_path):
    return shutil.copytree(runs / "stopped", tmp_path / "stopped")


def flip(path, at=0.5):
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "half written": (
        lambda checkpoint: (checkpoint / COMPLETE).unlink(),
        "checkpoint-8 was not completed: taking checkpoint-4",
    ),
    "a flipped bit": (
        lambda checkpoint: flip(checkpoint / "optimizer.pdopt"),
        "checkpoint-8 is damaged (optimizer.pdopt has another SHA-256",
    ),
    "a flipped bit of the mark": (
        lambda checkpoint: flip(checkpoint / COMPLETE),
        f"checkpoint-8 is damaged ({COMPLETE}: ",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named_and_the_run_goes_on(runs, stopped, caplog, kind):
    damage, message = DAMAGES[kind]
    damage(stopped / "checkpoint-8")
    _, resumed = run(make_values(stopped, save_every=4))
    assert message in caplog.text
    assert_same(RunRecord.load(runs / "whole"), resumed)


def test_all_checkpoints_damaged_is_refused(stopped):
    (stopped / "checkpoint-4/optimizer.pdopt").write_bytes(b"")
    (stopped / "checkpoint-8" / COMPLETE).write_text("{}")
    message = r"no whole.*SHA-256 is missing.*pdopt has 0 bytes.*over"
    with pytest.raises(ValueError, match=message):
        last_checkpoint(stopped)
    assert (stopped / "checkpoint-4" / COMPLETE).exists()


def reseal(checkpoint):
    """Let a checkpoint vouch for the files that it has now."""
    facts = read_complete(checkpoint)
    del facts["sha256"]
    names = {p.name for p in checkpoint.iterdir()} - {COMPLETE}
    facts["files"] = describe(checkpoint, sorted(names))
    (checkpoint / COMPLETE).write_text(json.dumps(sealed(facts)))


def test_weights_that_are_missing_are_named(tmp_path):
    path = str(tmp_path / "model_state.pdparams")
    paddle.save({"weight": paddle.zeros([2, 3])}, path)
    with pytest.raises(ValueError, match="bias is missing"):
        load_weights(paddle.nn.Linear(2, 3), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "model_state.tp01.pdparams",
        "optimizer.pdopt",
        "scaler.pdparams",
        "rng_state_1.pth",
        "model_state.pdparams.index.json",
    ],
)
def test_a_file_that_could_run_code_is_refused(stopped, name):
    checkpoint = stopped / "checkpoint-8"
    (checkpoint / name).write_bytes(pickle.dumps(Attack(stopped / "hacked")))
    reseal(checkpoint)
    assert f"{name} is refused" in find_checkpoint_fault(checkpoint)
    assert not (stopped / "hacked").exists()


def test_rotation_unmarks_first(stopped, monkeypatch):
    def killed(path):
        raise KeyboardInterrupt

    (stopped / "checkpoint-8").rename(stopped / "checkpoint-12")
    monkeypatch.setattr(checkpoints.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.rotate_checkpoints(stopped, step=12, keep=1)
    assert not (stopped / "checkpoint-4" / COMPLETE).exists()
    assert (stopped / "checkpoint-12" / COMPLETE).exists()
