# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What recording does to a training, in cases that are rare."""

import gc
import tempfile
import threading
import warnings
import weakref

import paddle
import pytest
from contract.test_rare_records import make_steps, make_training

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record, read_record, recorder, ring, writer
from paddle_adagc.watch.store import MAX_BYTES
from paddle_adagc.watch.trainer import open_record


def test_a_loss_whose_gradients_were_cleared_is_of_no_step(tmp_path):
    model, optimizer = make_training()
    record = open_record(tmp_path, optimizer, model=model)
    for batch in (1, 1, 100, 1):
        loss = model(batch * paddle.ones([1, 4])).square().mean()
        loss.backward()
        if batch == 1:
            optimizer.step()
        optimizer.clear_gradients()
    record.close()
    losses = read_record(tmp_path).column("loss")
    assert len(losses) == 3
    assert losses.max() < 100


def test_a_record_keeps_no_model_alive(tmp_path):
    model, optimizer = make_training()
    record = Record(tmp_path, optimizer, model)
    record.see_losses()
    make_steps(record, model, optimizer, 2)
    gone = weakref.ref(model)
    del record, model, optimizer
    gc.collect()
    assert gone() is None
    run = read_record(tmp_path)
    assert run.step.tolist() == [1, 2]
    assert (run.end["kind"], run.end["step"]) == ("finished", 2)


def test_one_rank_s_refusal_is_that_of_all_ranks(tmp_path, monkeypatch):
    def of_two(mine):
        return [mine, ValueError("experts under V1")]

    monkeypatch.setattr(recorder, "of_all_ranks", of_two)
    model, optimizer = make_training()
    with pytest.raises(ValueError, match="experts under V1"):
        Record(tmp_path / "a", optimizer, model)
    assert not (tmp_path / "a").exists()


def test_a_copy_takes_little_of_each_device(monkeypatch):
    its = ring.Ring(0, 64)
    its.num_sent = 3000
    for num_ranks, num_steps in ((1, 64), (128, 29), (1024, 3)):
        monkeypatch.setattr(ring.dist, "get_world_size", lambda n=num_ranks: n)
        its.plan([{"step": 1, "step_seconds": 0.1}])
        assert its.num_between == num_steps


def test_a_record_that_cannot_be_made_is_a_warning(tmp_path):
    """Also where warnings are errors, and it leaves nothing behind."""
    (tmp_path / "file").touch()
    model, optimizer = make_training()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = open_record(tmp_path / "file/record", optimizer, model=model)
    assert made is None


def test_a_full_disk_gets_no_more_folders(tmp_path, monkeypatch):
    def refuse(*given):
        raise OSError("no space left")

    monkeypatch.setattr(writer, "Store", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    its = writer.Writer(tmp_path / "a", 1, {}, MAX_BYTES, None, None)
    its.close({"kind": "finished"}, 1)
    assert not [*tmp_path.glob("adagc-record-*")]


def test_a_record_that_is_garbage_to_its_own_thread_is_written(
    tmp_path, recwarn
):
    model, optimizer = make_training()
    record = Record(tmp_path, optimizer, model)
    make_steps(record, model, optimizer, 2)
    its, ended = record._writer, threading.Event()
    gc.disable()
    del record, model, optimizer
    its.write(lambda store: (gc.collect(), ended.set()))
    its.start()
    assert ended.wait(10)
    gc.enable()
    its.wait(10)
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
    run = read_record(tmp_path)
    assert run.step.tolist() == [1, 2]
    assert run.end["text"] == "the optimizer was deleted"


def test_a_shadow_that_saw_nothing_since_an_error_cannot_act(tmp_path):
    model, optimizer = make_training()
    record = Record(tmp_path, optimizer, model, num_steps=2)
    make_steps(record, model, optimizer, 4)
    # As Paddle says that a kernel on the GPU has failed.
    record._end(OSError("(External) CUDA error(700)"))
    make_steps(record, model, optimizer, 4)
    with pytest.raises(RuntimeError, match="the record has ended"):
        record.switch()
    assert not isinstance(optimizer._grad_clip, ClipGradByAdaGC)
    record.close()
    run = read_record(tmp_path)
    assert run.end["kind"] == "unknown"
    assert run.end["step"] == run.step[-1]
