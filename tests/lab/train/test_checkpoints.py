# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: durable, checked, and replaced by the one before."""

import json
import pickle
import shutil

import paddle
import pytest
from lab.models.test_safe_pickle import Attack
from lab.train.runs import (
    assert_same,
    interrupted_at,
    make_values,
    run,
)

from paddle_adagc.lab.checksums import describe, sealed
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train import checkpoints
from paddle_adagc.lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
    read_complete,
)
from paddle_adagc.lab.train.resharding import LAYOUT


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


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite(path, change):
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def test_half_written_checkpoint_is_removed(stopped):
    (stopped / "checkpoint-8" / COMPLETE).unlink()
    assert last_checkpoint(stopped).name == "checkpoint-4"
    assert not (stopped / "checkpoint-8").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("optimizer.pdopt", "optimizer.pdopt has another SHA-256"),
        (COMPLETE, f"{COMPLETE}: "),
    ],
)
def test_a_flipped_bit_is_named_and_the_one_before_resumed(
    runs, stopped, caplog, name, reason
):
    flip(stopped / "checkpoint-8" / name)
    _, resumed = run(make_values(stopped, save_every=4))
    assert f"checkpoint-8 is damaged ({reason}" in caplog.text
    assert "): resuming from checkpoint-4" in caplog.text
    assert_same(RunRecord.load(runs / "whole"), resumed)


def test_all_checkpoints_damaged_is_refused(stopped):
    for step in (4, 8):
        (stopped / f"checkpoint-{step}" / "optimizer.pdopt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no whole.*pdopt has 0 bytes.*over"):
        last_checkpoint(stopped)
    assert (stopped / "checkpoint-4" / COMPLETE).exists()


def test_a_record_that_is_shorter_than_the_checkpoint_s(stopped, caplog):
    lines = (stopped / "metrics.jsonl").read_text().splitlines(True)
    (stopped / "metrics.jsonl").write_text("".join(lines[:6]))
    assert last_checkpoint(stopped).name == "checkpoint-4"
    assert "checkpoint-8 is damaged (metrics.jsonl has" in caplog.text


@pytest.mark.parametrize("damage", ["removed", "not JSON"])
def test_a_lost_run_file_is_restored(runs, stopped, caplog, damage):
    if damage == "removed":
        (stopped / "run.json").unlink()
    else:
        (stopped / "run.json").write_text('{"config": {')
    _, resumed = run(make_values(stopped, save_every=4))
    assert "run.json" in caplog.text
    assert "taken from checkpoint-8" in caplog.text
    assert_same(RunRecord.load(runs / "whole"), resumed)


def reseal(checkpoint, **changed):
    """Let a checkpoint vouch for the files that it has now."""
    facts = read_complete(checkpoint)
    del facts["sha256"]
    names = {p.name for p in checkpoint.iterdir()} - {COMPLETE}
    facts |= {"files": describe(checkpoint, sorted(names)), **changed}
    (checkpoint / COMPLETE).write_text(json.dumps(sealed(facts)))


def test_steps_and_parts_are_checked(stopped):
    checkpoint = stopped / "checkpoint-8"
    reseal(checkpoint, clip_step=7)
    assert "is of step 8" in find_checkpoint_fault(checkpoint)
    reseal(checkpoint, clip_step=8)
    assert find_checkpoint_fault(checkpoint) is None
    state = checkpoint / "trainer_state.json"
    rewrite(state, lambda facts: facts.update(global_step=7))
    reseal(checkpoint)
    assert "of step 7" in find_checkpoint_fault(checkpoint)
    rewrite(state, lambda facts: facts.update(global_step=8))
    paddle.save({}, str(checkpoint / "optimizer.pdopt"))
    reseal(checkpoint)
    assert "optimizer.pdopt holds nothing" in find_checkpoint_fault(checkpoint)
    (checkpoint / "optimizer.pdopt").unlink()
    reseal(checkpoint)
    assert "pdopt is missing" in find_checkpoint_fault(checkpoint)
    (checkpoint / COMPLETE).write_text("{}")
    assert "SHA-256 is missing" in find_checkpoint_fault(checkpoint)


@pytest.mark.parametrize("kind", ["other shape", "missing"])
def test_weights_of_another_model_are_never_loaded(stopped, kind):
    path = str(stopped / "checkpoint-8/model_state.pdparams")
    weights = paddle.load(path)
    name = "lm_head.weight"
    if kind == "missing":
        del weights[name]
    else:
        weights[name] = paddle.zeros([3, 5])
    paddle.save(weights, path)
    found = "missing" if kind == "missing" else r"\(3, 5\)"
    reseal(stopped / "checkpoint-8")
    with pytest.raises(ValueError, match=rf"{name} is {found}"):
        run(make_values(stopped, save_every=4))


@pytest.mark.parametrize("name", ["evil.bin", "../../optimizer.pdopt"])
def test_a_layout_names_no_other_file(stopped, name):
    checkpoint = stopped / "checkpoint-8"

    def change(layout):
        layout["parallel"]["tp"] = 2
        layout["optimizer"][name] = layout["optimizer"].pop("optimizer.pdopt")

    rewrite(checkpoint / LAYOUT, change)
    reseal(checkpoint)
    mark = stopped.parent / "hacked"
    (checkpoint / name).resolve().write_bytes(pickle.dumps(Attack(mark)))
    with pytest.raises(ValueError, match=rf"refused: it names '{name}'"):
        run(make_values(stopped, save_every=4))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *(
            (name, "refused: it asks for posix.system")
            for name in (
                *("model_state.ep01.pdparams", "optimizer.pdopt"),
                *("scaler.pdparams", "rng_state_1.pth"),
            )
        ),
        ("model_state.pdparams.index.json", "index.json is refused"),
    ],
)
def test_a_file_that_could_run_code_is_refused(stopped, name, reason):
    checkpoint = stopped / "checkpoint-8"
    (checkpoint / name).write_bytes(pickle.dumps(Attack(stopped / "hacked")))
    reseal(checkpoint)
    assert reason in find_checkpoint_fault(checkpoint)
    assert not (stopped / "hacked").exists()


def test_everything_is_on_the_disk_before_the_mark(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        "paddle_adagc.lab.checksums.sync", lambda path: synced.append(path.name)
    )
    write = checkpoints.atomic_write_json

    def mark(path, *arguments, **options):
        (checkpoint,) = tmp_path.glob("checkpoint-*")
        assert {p.name for p in checkpoint.iterdir()} <= {*synced}
        return write(path, *arguments, **options)

    monkeypatch.setattr(checkpoints, "atomic_write_json", mark)
    run(make_values(tmp_path, max_steps=3, save_every=3))


def test_rotation_unmarks_first(stopped, monkeypatch):
    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.rotate_checkpoints(stopped, step=8, keep=1)
    assert not (stopped / "checkpoint-4" / COMPLETE).exists()
    assert (stopped / "checkpoint-8" / COMPLETE).exists()


def test_a_run_whose_record_vanished_does_not_finish(stopped, monkeypatch):
    def vanish(*arguments, **settings):
        (stopped / "metrics.jsonl").unlink()
        return []

    monkeypatch.setattr("paddle_adagc.lab.train.recorder.Watcher.watch", vanish)
    with pytest.raises(FileNotFoundError, match="the file is gone"):
        run(make_values(stopped, save_every=4))
    facts = json.loads((stopped / "run.json").read_text())
    assert facts["status"] == "running"
