# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints: lines while it trains, and how it ended."""

import json
import re
from unittest import mock

import numpy as np
import pytest
from adagc_lab.data.text import TokenDataset
from lab.train import runs
from pages import load_tool

LINE = re.compile(
    r"step (\d+)/12  loss [\d.]+  lr [\d.]+  \|g\| [\d.]+  clipped \d+%  "
    r"h_min [\d.]+( \(\S+\))?  [\d.]+k? tok/s  ETA \d\d:\d\d"
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
    assert lines[3].startswith("step 6/12  validation loss ")
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
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"the loss (ended at .* above|is not finite)", last)


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
    record = (tmp_path / "run/metrics.jsonl").read_text()
    assert len(record.splitlines()) in (3, 4)


@pytest.mark.parametrize("name", ["global_norm", "value", "none"])
def test_other_clips_have_the_same_numbers_at_every_log(tmp_path, name, capsys):
    """Norms read by the clip alone and by the record of all tensors."""
    records = {}
    for tensors in (True, False):
        clip = {} if name == "none" else {"lambda_abs": 0.01}
        values = runs.make_values(
            tmp_path / str(tensors),
            save_every=5,
            clip={"name": name, **clip},
            record={"tensors": tensors},
        )
        _, records[tensors] = runs.run(values)
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
