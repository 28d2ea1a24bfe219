# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where runs start: what their directory holds, changed settings, forks."""

import contextlib
import shutil

import numpy as np
import pytest
from adagc_lab.record.files import RunRecord
from adagc_lab.train.checkpoints import last_checkpoint
from adagc_lab.train.optimizers import learning_rate
from adagc_lab.train.parse import merged, parse_config
from adagc_lab.train.run import run_pretraining
from adagc_lab.train.start import Fork, Start
from indexed import write_random_dataset
from lab.train import runs
from pages import load_tool

from paddle_adagc.state_file import load_state

main = load_tool("pretrain").main

SCHEDULE = {"kind": "constant", "learning_rate": 0.01, "warmup_steps": 2}


def constant(output_dir, **changes):
    changes = {"save_every": 4, "schedule": SCHEDULE, **changes}
    return runs.make_values(output_dir, **changes)


def fork(values, source, target, step=None):
    """Run ``values`` in ``target`` from a checkpoint of ``source``."""
    values["train"]["output_dir"] = str(target)
    status = run_pretraining(parse_config(values), fork=Fork(source, step))
    return status, RunRecord.load(target)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run with checkpoints of the steps 4, 8 and 12; not to be changed."""
    directory = tmp_path_factory.mktemp("source") / "run"
    runs.run(constant(directory, keep_checkpoints=9))
    return directory


@pytest.fixture
def copied(source, tmp_path):
    return shutil.copytree(source, tmp_path / "run")


def test_a_finished_run_is_extended(copied, tmp_path):
    logs = {"log_every": 1, "save_every": 6, "keep_checkpoints": 2}
    values = constant("", max_steps=20, **logs)
    record = runs.run_in(copied, values)
    whole = runs.run_in(tmp_path / "whole", values)
    np.testing.assert_array_equal(record.loss, whole.loss)
    assert runs.checkpoint_names(copied) == ["checkpoint-18", "checkpoint-20"]


def test_a_decay_follows_the_new_length_which_has_to_fit(tmp_path):
    values = runs.make_values(tmp_path, max_steps=3)
    runs.run(values)
    for length, error, message in (
        (2, ValueError, "the run has made 3 steps"),
        (5, FileNotFoundError, "cannot be extended"),
    ):
        values["train"]["max_steps"] = length
        with pytest.raises(error, match=message):
            runs.run(values)
    values["train"] |= {"save_every": 12, "max_steps": 12}
    run_pretraining(parse_config(values), overwrite=True)
    values["train"]["max_steps"] = 16
    _, record = runs.run(values)
    schedule = parse_config(values).schedule
    rates = [learning_rate(schedule, i, 12) for i in range(12)]
    rates += [learning_rate(schedule, i, 16) for i in range(12, 16)]
    np.testing.assert_allclose(record.metrics["learning_rate"], rates)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    prefix = tmp_path / "data/x"
    data = write_random_dataset(prefix, seed=0)
    values = runs.make_values(tmp_path / "run", save_every=4, data=data)
    with runs.interrupted_at(6):
        runs.run(values)
    write_random_dataset(prefix, seed=1)  # documents of the same lengths
    with pytest.raises(ValueError, match=r"has changed since .* --fork"):
        runs.run(values)
    write_random_dataset(prefix, seed=0)
    assert runs.run(values)[0] == "finished"


@pytest.mark.filterwarnings("ignore:the loaded state was made")
def test_a_fork_has_the_run_s_past_and_the_state_of_what_keeps_its_name(
    source, tmp_path
):
    values = constant("", keep_checkpoints=9)
    status, record = fork(values, source, tmp_path / "same", step=4)
    assert status == "finished"
    runs.assert_same(RunRecord.load(source), record)
    origin = record.run["forked_from"]
    assert (origin["run"], origin["step"]) == (str(source), 4)
    assert origin["changed"] == {}
    values = constant("", optimizer={"name": "lion"})
    values["clip"]["lambda_rel"] = 1.2
    values["record"]["moments"] = False
    fork(values, source, tmp_path / "changed", step=8)
    state = load_state(tmp_path / "changed/checkpoint-12")
    assert state["step"] == 12
    assert state["config"]["lambda_rel"] == 1.2


def test_a_run_killed_while_it_began_begins_again(source, tmp_path):
    """In the first write of run.json; while a fork copied the record."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.run.json.1.tmp").write_text("{")
    assert runs.run(constant(tmp_path / "a"))[0] == "finished"

    def killed(*_, **__):
        raise KeyboardInterrupt

    values = constant("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "copytree", killed)
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            fork(values, source, tmp_path / "b", step=4)
    assert (tmp_path / "b/run.json").exists()
    assert not (tmp_path / "b/record").exists()
    status, record = fork(values, source, tmp_path / "b", step=4)
    assert (status, record.num_steps) == ("finished", 12)


def test_a_fork_to_another_clip_starts_with_its_warm_up(tmp_path):
    changes = {"clip": {"name": "global_norm"}, "record": {}}
    values = constant(tmp_path / "global", keep_checkpoints=9, **changes)
    _, before = runs.run(values)
    values["clip"] = {"name": "adagc", "t_start": 1}
    values["record"] = {"tensors": True}
    target = tmp_path / "whole"
    _, whole = fork(values, tmp_path / "global", target, step=8)
    # Step 8 is the warm-up, in which AdaGC clips by the global norm.
    np.testing.assert_array_equal(whole.loss[:10], before.loss[:10])
    assert (whole.loss[10:] != before.loss[10:]).all()
    assert np.isnan(whole.h[:8]).all()
    assert np.isfinite(whole.h[8:]).all()
    assert load_state(target / "checkpoint-12")["step"] == 4
    changed = whole.run["forked_from"]["changed"]
    assert changed["clip.name"] == ["global_norm", "adagc"]
    # A killed fork resumes, before its first checkpoint and after it.
    values["train"] |= {"output_dir": str(tmp_path / "killed"), "save_every": 2}
    config = parse_config(values)
    with runs.interrupted_at(9):
        run_pretraining(config, fork=Fork(tmp_path / "global", 8))
    with runs.interrupted_at(11):
        run_pretraining(config)
    assert run_pretraining(config) == "finished"
    np.testing.assert_array_equal(
        RunRecord.load(tmp_path / "killed").loss, whole.loss
    )


def test_what_cannot_be_forked_is_refused(source, tmp_path, capsys):
    config = str(runs.CONFIGS / "proxy/switch.yaml")
    here = f"train.output_dir={tmp_path}"
    assert main([config, here, "--fork", str(tmp_path / ".")]) == 2
    assert "is the run itself" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([config, here, "--at", "4"])
    assert "--at 4 needs --fork NEW_DIR" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"steps \[4, 8, 12\]"):
        fork(constant(""), source, tmp_path / "a", step=5)
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        fork(constant(""), tmp_path / "nothing", tmp_path / "b")
    runs.run(constant(tmp_path / "c"))
    with pytest.raises(FileExistsError, match="not this fork"):
        fork(constant(""), source, tmp_path / "c", step=4)
    values = constant("", model={"hidden_size": 32})
    with pytest.raises(ValueError, match="another model"):
        fork(values, source, tmp_path / "d", step=4)
    status, _ = fork(constant(""), source, tmp_path / "d", step=4)
    assert status == "finished"
    two = {"parallel": {"dp": 2}, "record": {}}
    (tmp_path / "f").mkdir()
    for other in ({"precision": "float8"}, two):
        values = constant(tmp_path / "f", max_steps=16, **other)
        with pytest.raises(ValueError, match="state has the names of its own"):
            Start(parse_config(values), fork=Fork(source)).read()
    with pytest.raises(ValueError, match="has made 12 steps; give more"):
        fork(constant(""), source, tmp_path / "e")


def test_a_finished_run_is_not_repeated_and_another_is_refused(copied):
    values, record = constant(copied), copied / "record/record.sqlite"
    before = record.stat().st_mtime_ns
    assert runs.run(values)[0] == "finished"
    assert record.stat().st_mtime_ns == before
    values["clip"]["t_start"] = 6
    with pytest.raises(FileExistsError, match=r"clip\.t_start"):
        runs.run(values)
    run_pretraining(parse_config(values), overwrite=True)
    assert RunRecord.load(copied).run["config"]["clip"]["t_start"] == 6


def test_what_is_the_user_s_own_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    config = parse_config(runs.make_values(tmp_path))
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="holds no run"):
            run_pretraining(config, overwrite=overwrite)
    for name in ("checkpoint-best", "checkpoint-4"):
        (tmp_path / name).mkdir()
    assert last_checkpoint(tmp_path) is None
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"thesis.txt", "checkpoint-best"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clip": {"lamda_rel": 1.1}}, "'lamda_rel'"),
        ({"model": {"vocab_size": 100}}, "vocab_size=100"),
        ({"faults": runs.nan_at(2, tensor="nope")}, "tensor='nope'"),
        ({"clip": {"overrides": {"foo": None}}}, "'foo' matches no tensor"),
    ],
)
def test_a_run_is_not_removed_for_one_that_is_not_sound(copied, wrong, message):
    before = RunRecord.load(copied)
    with pytest.raises(ValueError, match=message):
        run_pretraining(
            parse_config(merged(constant(copied), wrong)), overwrite=True
        )
    runs.assert_same(before, RunRecord.load(copied))
