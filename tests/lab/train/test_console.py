# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints: lines while it trains, and how it ended."""

import json
import re
from unittest import mock

import pytest
from adagc_lab.data.text import TokenDataset
from adagc_lab.record.files import num_steps
from lab.train import runs
from pages import load_tool

LINE = re.compile(
    r"step (\d+)/12  loss [\d.]+  lr [\d.]+  \|g\| [\d.]+  clipped \d+%  "
    r"h_min [\d.]+  [\d.]+k? tok/s  ETA \d\d:\d\d"
)


def test_plain_lines_and_how_a_run_went_on(tmp_path, capsys):
    values = runs.make_values(tmp_path / "run", eval_every=6, save_every=4)
    with runs.interrupted_at(9):
        runs.run(values)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "10,416 parameters in 12 tensors, 64 tokens per step, 12 steps"
    )
    steps = [int(m[1]) for line in lines if (m := LINE.fullmatch(line))]
    assert steps == [3, 6, 9]
    assert len(lines) == 5
    assert lines[2].startswith("step 6/12  validation loss ")
    runs.run(values)
    assert "resumed at step 8" in capsys.readouterr().out.splitlines()
    runs.run(values)
    assert capsys.readouterr().out == (
        f"{tmp_path / 'run'}: already finished, nothing to do\n"
    )


def test_a_rising_loss_is_said_and_is_exit_status_1(tmp_path, capsys):
    changes = {"schedule": {"learning_rate": 3.0}, "max_steps": 30}
    changes["clip"] = {"name": "global_norm", "lambda_abs": 1e6}
    values = runs.make_values(tmp_path / "run", **changes)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    assert load_tool("pretrain").main([str(config)]) == 1
    problem, _, following = capsys.readouterr().out.splitlines()[-3:]
    assert re.match(r"problem: the loss (ended above|is not finite)", problem)
    assert following == f"next: adagc-report {tmp_path / 'run'}"


def test_a_run_that_an_error_ended_is_not_called_running(tmp_path, capsys):
    values = runs.make_values(tmp_path / "run")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    get = TokenDataset.__getitem__

    def read(self, index):
        if index == 17:
            raise ValueError("shard x.tar is damaged")
        return get(self, index)

    with mock.patch.object(TokenDataset, "__getitem__", read):
        assert load_tool("pretrain").main([str(config)]) == 2
    assert "shard x.tar is damaged" in capsys.readouterr().err
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["status"] == "stopped"
    assert num_steps(tmp_path / "run") in (3, 4)


@pytest.mark.parametrize("name", ["global_norm", "none"])
def test_other_clips_print_what_is_known_of_them(name, tmp_path, capsys):
    clip = {} if name == "none" else {"lambda_abs": 0.01}
    values = runs.make_values(
        tmp_path, clip={"name": name, **clip}, record={"tensors": False}
    )
    _, record = runs.run(values)
    assert (record.metrics["global_grad_norm"] > 0).all()
    lines = [x for x in capsys.readouterr().out.splitlines() if "tok/s" in x]
    assert len(lines) == 4
    for line in lines:
        assert bool(LINE.match(line)) == (name == "global_norm")
        assert "  |g| " in line
