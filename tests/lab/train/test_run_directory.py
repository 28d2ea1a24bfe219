# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run does with its directory: what is there, and who else writes."""

import multiprocessing
import time

import numpy as np
import pytest
from lab.train.interruption import interrupted_at
from lab.train.runs import assert_same, make_values, run

from paddle_adagc.lab.data.indexed import write_indexed_dataset
from paddle_adagc.lab.record.files import RunRecord, lock_run, update_run_json
from paddle_adagc.lab.train.checkpoints import COMPLETE, last_checkpoint
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.run import run_pretraining


def test_finished_run_is_not_repeated_and_another_config_is_refused(tmp_path):
    values = make_values(tmp_path, max_steps=3)
    run(values)
    before = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
    assert run(values)[0] == "finished"
    assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == before
    values["clip"]["t_start"] = 6
    with pytest.raises(FileExistsError, match=r"clip\.t_start"):
        run(values)
    run_pretraining(parse_config(values), overwrite=True)
    assert RunRecord.load(tmp_path).run["config"]["clip"]["t_start"] == 6


def test_directory_that_another_process_writes_to_is_left_alone(tmp_path):
    values = make_values(tmp_path, max_steps=3)
    run(values)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    config = parse_config(values)
    with (
        lock_run(tmp_path),
        pytest.raises(FileExistsError, match="another process"),
    ):
        run_pretraining(config, overwrite=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    update_run_json(tmp_path, status="running")
    with (
        lock_run(tmp_path),
        pytest.raises(FileExistsError, match="another process"),
    ):
        run_pretraining(config)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_directory_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds no run"):
        run(make_values(tmp_path))
    assert (tmp_path / "thesis.txt").exists()


def test_half_written_checkpoint_is_removed(tmp_path):
    values = make_values(tmp_path, save_every=4, keep_checkpoints=2)
    run(values)
    (tmp_path / "checkpoint-12" / COMPLETE).unlink()
    assert last_checkpoint(tmp_path).name == "checkpoint-8"
    assert not (tmp_path / "checkpoint-12").exists()


def test_older_checkpoints_are_removed(tmp_path):
    run(make_values(tmp_path, save_every=2, keep_checkpoints=2))
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-10",
        "checkpoint-12",
    ]


def test_a_run_is_not_removed_for_one_that_is_not_sound(tmp_path):
    values = make_values(tmp_path, max_steps=3)
    _, before = run(values)
    for section, wrong in (
        ("clip", {"lamda_rel": 1.1}),
        ("model", {"hidden_size": 15}),
        ("faults", [{"kind": "gradient_nan", "start": 2, "tensor": "nope"}]),
    ):
        changed = dict(values)
        changed[section] = (
            {**values[section], **wrong} if isinstance(wrong, dict) else wrong
        )
        config = parse_config(changed)
        with pytest.raises(ValueError, match=r"lamda_rel|hidden_size|nope"):
            run_pretraining(config, overwrite=True)
    assert_same(before, RunRecord.load(tmp_path))


def test_what_is_no_run_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    config = parse_config(make_values(tmp_path))
    with pytest.raises(FileExistsError, match="holds no run"):
        run_pretraining(config, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()


def test_a_checkpoint_that_another_process_writes_is_left_alone(tmp_path):
    values = make_values(tmp_path, max_steps=3)
    run(values)
    update_run_json(tmp_path, status="running")
    (tmp_path / "checkpoint-2").mkdir()  # its last file is not there yet
    config = parse_config(values)
    with (
        lock_run(tmp_path),
        pytest.raises(FileExistsError, match="another process"),
    ):
        run_pretraining(config)
    assert (tmp_path / "checkpoint-2").exists()


def test_a_checkpoint_of_the_user_s_own_is_left_alone(tmp_path):
    for name in ("checkpoint-best", "checkpoint-4"):
        (tmp_path / name).mkdir()
    assert last_checkpoint(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-best"]


def test_processes_that_load_data_do_not_hold_the_directory(tmp_path):
    context = multiprocessing.get_context("fork")
    is_there = context.Event()

    def work():
        is_there.set()
        time.sleep(60)

    with lock_run(tmp_path):
        worker = context.Process(target=work)
        worker.start()
        assert is_there.wait(30)
    try:
        with lock_run(tmp_path):
            assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


def test_a_new_directory_in_which_nothing_was_put_is_gone(tmp_path):
    with lock_run(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    def write_data(seed):
        rng = np.random.default_rng(seed)
        documents = [rng.integers(256, size=40) for _ in range(90)]
        write_indexed_dataset(
            str(tmp_path / "data" / "x"), documents, vocab_size=256
        )

    values = make_values(tmp_path / "run", save_every=4)
    values["data"] |= {"kind": "mmap", "prefix": str(tmp_path / "data" / "x")}
    write_data(seed=0)
    config = parse_config(values)
    with interrupted_at(6):
        run_pretraining(config)
    write_data(seed=1)  # documents of the same lengths
    with pytest.raises(FileExistsError, match="on other data"):
        run_pretraining(config)
    write_data(seed=0)
    assert run_pretraining(config) == "finished"


def test_the_last_step_is_saved_and_evaluated(tmp_path):
    _, record = run(make_values(tmp_path, save_every=5, eval_every=5))
    assert last_checkpoint(tmp_path).name == "checkpoint-12"
    evaluated = np.flatnonzero(np.isfinite(record.metrics["eval_loss"]))
    assert evaluated.tolist() == [4, 9, 11]


@pytest.mark.slow
@pytest.mark.parametrize("content", ['{"config": {', "[]", "\0" * 20])
def test_a_damaged_run_file_is_named(tmp_path, content):
    values = make_values(tmp_path, max_steps=3)
    run(values)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged.*overwrite"):
        run(values)
    assert run_pretraining(parse_config(values), overwrite=True) == "finished"


def test_a_damaged_line_of_the_record_is_named(tmp_path):
    run(make_values(tmp_path, max_steps=3))
    update_run_json(tmp_path, status="running")
    file = tmp_path / "metrics.jsonl"
    lines = file.read_text().splitlines(True)
    file.write_text(lines[0] + lines[1][:20] + "\n" + lines[2])
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: damaged"):
        RunRecord.load(tmp_path)


def test_weights_that_are_nan_are_not_saved(tmp_path):
    values = make_values(tmp_path, log_every=6, save_every=2)
    values["train"]["keep_checkpoints"] = 1
    values["clip"] = {"name": "global_norm"}
    values["faults"] = [{"kind": "gradient_nan", "steps": [2]}]
    status, record = run(values)
    assert (status, record.num_steps) == ("diverged", 4)
    names = [p.name for p in tmp_path.glob("checkpoint-*")]
    assert names == ["checkpoint-2"]
    assert run(values)[0] == "diverged"
