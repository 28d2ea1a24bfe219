# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import os
import signal
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest
from adagc_lab.record.files import RECORD, RunRecord
from adagc_lab.train import processes, trainer
from adagc_lab.train.checkpoints import COMPLETE
from adagc_lab.train.processes import StopRequest
from lab.train import runs

from paddle_adagc.watch import read_record


@pytest.fixture
def own_signals():
    """Put the handlers of signals back after a test."""
    before = {number: signal.getsignal(number) for number in processes._SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_stopped_command_resumes_with_the_same_record(number, tmp_path):
    values = runs.make_values(tmp_path / "whole", max_steps=150, log_every=1)
    _, whole = runs.run(values)
    values["train"]["output_dir"] = str(tmp_path / "stopped")
    before = signal.signal(number, signal.SIG_DFL)  # nohup's is inherited
    process = runs.start(values, tmp_path)
    signal.signal(number, before)
    while "step 5/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    printed = process.stdout.read()
    assert process.wait(600) == 128 + number
    (checkpoint,) = (tmp_path / "stopped").glob("checkpoint-*")
    assert printed.splitlines()[-2:] == [
        f"stopped by {number.name}: saved {checkpoint}",
        f"next: python {runs.ROOT / 'tools/pretrain.py'} "
        f"{tmp_path / 'run.yaml'}",
    ]
    stopped = RunRecord.load(tmp_path / "stopped")
    assert stopped.run["status"] == "stopped"
    assert checkpoint.name == f"checkpoint-{stopped.num_steps}"
    kept = read_record(tmp_path / "stopped" / RECORD)
    assert kept.step[-1] == stopped.num_steps
    status, resumed = runs.run(values)
    assert status == "finished"
    runs.assert_same(whole, resumed)


@pytest.mark.slow
def test_a_signal_before_training_is_answered_in_one_line(tmp_path):
    values = runs.make_values(tmp_path / "run", max_steps=4000)
    process = runs.start(values, tmp_path, stderr=subprocess.PIPE)
    maps = Path(f"/proc/{process.pid}/maps")
    while process.poll() is None and "libpaddle" not in maps.read_text():
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    printed, said = process.communicate(timeout=120)
    assert (process.returncode, said.count("Error")) == (143, 0), said
    assert printed == "stopped by SIGTERM; the same command resumes\n"


@pytest.mark.slow
def test_the_launcher_s_signal_reaches_all_ranks(tmp_path):
    values = runs.make_values(
        tmp_path / "run", max_steps=4000, record={}, parallel={"dp": 2}
    )
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node=2"]
    process = runs.start(
        values, tmp_path, *launch, f"--log_dir={tmp_path / 'log'}"
    )
    runs.wait_for_step(tmp_path / "run", 3, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    stopped = RunRecord.load(tmp_path / "run")
    assert stopped.run["status"] == "stopped"
    checkpoint = tmp_path / f"run/checkpoint-{stopped.num_steps}"
    assert (checkpoint / COMPLETE).exists()
    log = (tmp_path / "log/workerlog.0").read_text()
    assert f"stopped by SIGTERM: saved {checkpoint}\n" in log


def test_a_second_signal_exits_at_once_and_an_echo_does_not(
    monkeypatch, own_signals
):
    exited = mock.Mock()
    monkeypatch.setattr(processes.os, "_exit", exited)
    with StopRequest(log_every=10) as stop:
        assert stop.agreed(1) == 0
    assert signal.getsignal(signal.SIGINT) is own_signals[signal.SIGINT]
    with StopRequest(log_every=10) as stop:
        for _ in range(3):  # as Paddle's launcher does
            signal.raise_signal(signal.SIGTERM)
        assert stop.agreed(2) == signal.SIGTERM
        exited.assert_not_called()
        monkeypatch.setattr(processes, "_ECHO_SECONDS", 0.0)
        signal.raise_signal(signal.SIGINT)
        exited.assert_called_once_with(130)
    assert signal.getsignal(signal.SIGINT) == stop._note


def test_a_forked_data_loader_ends_by_sigterm():
    with StopRequest(log_every=10):
        has_started, starting = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(starting, b"!")
            time.sleep(600)
            os._exit(0)
        os.read(has_started, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM


@pytest.mark.parametrize("every", [4, 5])
def test_the_last_step_is_evaluated_and_saved_once(every, tmp_path, capsys):
    values = runs.make_values(tmp_path, eval_every=every, save_every=every)
    complete = trainer.complete_checkpoint
    with mock.patch.object(
        trainer, "complete_checkpoint", side_effect=complete
    ) as saved:
        _, record = runs.run(values)
    assert saved.call_count == 3
    assert capsys.readouterr().out.count("validation loss") == 3
    assert runs.evaluated(record)[0] == [every - 1, 2 * every - 1, 11]
    names = {"checkpoint-12", f"checkpoint-{2 * every}"}
    assert {*runs.checkpoint_names(tmp_path)} == names
