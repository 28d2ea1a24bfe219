# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints: plain lines, a bar on a terminal, how it ended."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from lab.train.interruption import interrupted_at
from lab.train.runs import make_values, run

from paddle_adagc.lab.train.console import (
    describe_log,
    short_name,
    summarise_run,
)

ROOT = Path(__file__).parents[3]
LINE = re.compile(
    r"step (\d+)/12  loss [\d.]+  lr [\d.]+  \|g\| [\d.]+  clipped \d+%  "
    r"h_min [\d.]+( \(\S+\))?  [\d.]+k? tok/s  ETA \d\d:\d\d"
)


def command(tmp_path, values):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(values))
    return [sys.executable, str(ROOT / "tools/pretrain.py"), str(path)]


def test_plain_lines_without_a_terminal(tmp_path, capsys):
    run(make_values(tmp_path / "run", eval_every=6))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "10,416 parameters in 12 tensors, 64 tokens per step, 12 steps"
    )
    steps = [int(m[1]) for line in lines if (m := LINE.fullmatch(line))]
    assert steps == [3, 6, 9, 12]
    assert sum("validation loss" in line for line in lines) >= 2
    assert len(lines) <= 8


def test_resumed_and_ended_runs_say_so(tmp_path, capsys):
    values = make_values(tmp_path / "run", save_every=4)
    with interrupted_at(9):
        run(values)
    capsys.readouterr()
    run(values)
    assert "resumed at step 8" in capsys.readouterr().out.splitlines()
    run(values)
    assert capsys.readouterr().out == (
        f"{tmp_path / 'run'}: already finished, nothing to do\n"
    )


@pytest.mark.slow
def test_a_rising_loss_is_said_and_is_exit_status_1(tmp_path):
    values = make_values(tmp_path / "run", max_steps=30)
    values["schedule"]["learning_rate"] = 3.0
    values["clip"] = {"name": "global_norm", "lambda_abs": 1e6}
    done = subprocess.run(
        command(tmp_path, values), capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert "it/s" not in done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.match(r"the loss (ended at .* above|is not finite)", last)
    assert "lower schedule.learning_rate" in last


@pytest.mark.slow
def test_a_bar_on_a_terminal(tmp_path):
    terminal, end = pty.openpty()
    size = struct.pack("HHHH", 40, 120, 0, 0)  # tqdm draws nothing in 0 x 0
    fcntl.ioctl(end, termios.TIOCSWINSZ, size)
    process = subprocess.Popen(
        command(tmp_path, make_values(tmp_path / "run")),
        stdout=end,
        stderr=subprocess.DEVNULL,
    )
    os.close(end)
    seen = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        seen += part
    assert process.wait(60) == 0
    assert b"12/12" in seen
    assert b"\r" in seen.replace(b"\r\n", b"")
    lines = seen.decode().replace("\r", "\n").splitlines()
    assert sum(bool(LINE.fullmatch(line.strip())) for line in lines) == 4


def test_ending_names_losses_spikes_and_tensors(tmp_path):
    values = make_values(tmp_path, log_every=4, save_every=12)
    values["faults"] = [
        {
            "kind": "gradient_scale",
            "steps": [7],
            "tensor": "lm_head.weight",
            "magnitude": 1e4,
        },
        {"kind": "random_tokens", "steps": [11]},
    ]
    _, record = run(values)
    ending = summarise_run(tmp_path)
    assert ending.is_sound
    text = "\n".join(ending.lines)
    assert text.startswith("finished: 12 steps in 00:0")
    assert f"loss: first {record.loss[0]:.4g}, " in text
    assert "spikes: – (a step is judged by the 1,000 steps before" in text
    assert re.search(r"most clipped: lm_head h \S+ at step 7", text)
    assert "metrics.jsonl, tensors.f32, checkpoint-12)" in text
    assert ending.lines[-1] == f"next: python tools/report.py {tmp_path}"


def test_a_run_that_diverged_is_not_sound(tmp_path):
    values = make_values(tmp_path, max_steps=40)
    values["clip"] = {"name": "global_norm"}
    values["faults"] = [{"kind": "gradient_nan", "steps": [4]}]
    run(values)
    ending = summarise_run(tmp_path)
    assert not ending.is_sound
    assert ending.lines[0].startswith("diverged: 6 steps")
    assert ending.lines[-1].startswith("the loss is not finite any more")


def test_a_log_without_a_clip_s_numbers():
    logs = {"loss": 3.49123, "learning_rate": 3e-3}
    assert describe_log(logs) == "loss 3.491  lr 0.003"
    clip = {
        "clip_global_grad_norm": 0.56,
        "clip_clipped_fraction": 0.12,
        "clip_h_min": 0.31,
        "clip_nonfinite": 2,
        "clip_h/model.layers.1.mlp.up.weight": 0.31,
        "clip_h/model.layers.0.mlp.up.weight": 0.4,
    }
    assert describe_log(logs | clip) == (
        "loss 3.491  lr 0.003  |g| 0.56  clipped 12%  "
        "h_min 0.31 (layers.1.mlp.up)  nonfinite 2"
    )
    assert short_name("lm_head.weight") == "lm_head"


@pytest.mark.parametrize("name", ["global_norm", "value", "none"])
def test_other_clips_have_the_same_numbers_at_every_log(tmp_path, name, capsys):
    """Norms read by the clip alone and by the record of all tensors."""
    records = {}
    for tensors in (True, False):
        values = make_values(tmp_path / str(tensors), save_every=5)
        values["clip"] = {"name": name}
        if name != "none":
            values["clip"]["lambda_abs"] = 0.01
        values["record"] = {"tensors": tensors}
        _, records[tensors] = run(values)
    whole, logged = records[True].metrics, records[False].metrics
    np.testing.assert_array_equal(whole["loss"], logged["loss"])
    has_numbers = np.isfinite(logged["global_grad_norm"])
    steps = np.flatnonzero(has_numbers) + 1
    assert steps.tolist() == [3, 5, 6, 9, 10, 12]
    for key in ("global_grad_norm", "clipped_fraction"):
        expected = np.where(has_numbers, whole[key], np.nan)
        np.testing.assert_allclose(logged[key], expected, rtol=1e-6)
    lines = [x for x in capsys.readouterr().out.splitlines() if "tok/s" in x]
    assert len(lines) == 8
    assert all(map(LINE.match, lines))
    numbers = [re.split(r"  \S+ tok/s", line)[0] for line in lines]
    assert numbers[:4] == numbers[4:]
