# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/inspect_run.py`` on short runs; see lab/train/test_record.py."""

import re

import pytest
from indexed import write_random_dataset

pytest.importorskip("paddlenlp")
from adagc_lab.data.config import DataConfig
from adagc_lab.data.datasets import build_datasets
from adagc_lab.train.parse import parse_config
from adagc_lab.train.run import run_pretraining
from adagc_lab.train.start import Fork
from lab.train.runs import SCALED_HEAD, make_values, run
from pages import load_tool

main = load_tool("inspect_run").main


@pytest.fixture
def inspected(capsys):
    """``inspected(directory, step, ...)``: what the command prints."""

    def call(directory, step, *options):
        capsys.readouterr()
        assert main([str(directory), "--step", str(step), *options]) == 0
        return capsys.readouterr().out

    return call


def test_the_text_is_that_of_the_step_s_batch(tmp_path, inspected):
    changes = {"faults": [{**SCALED_HEAD, "steps": [7]}]}
    values = make_values(tmp_path, gradient_accumulation_steps=2, **changes)
    _, record = run(values)
    shown = inspected(tmp_path, 7, "--all")
    assert f"step 7: loss {record.loss[7]:.4g}\n" in shown
    assert "fault: gradient_scale lm_head.weight" in shown
    assert "batch of 8 samples:" in shown
    dataset, _ = build_datasets(
        DataConfig(**values["data"], seed=0), num_train_samples=100
    )
    for index in range(56, 64):
        text = bytes(dataset[index]["input_ids"].tolist()).decode()
        assert (
            f"sample {index}, token {dataset.order[index]}: {text!r}" in shown
        )
    assert "\nstep 0: loss " in inspected(tmp_path, 0)


def test_a_repeated_batch_is_that_of_the_burst_s_first_step(
    tmp_path, inspected
):
    fault = {"kind": "repeated_batch", "start": 4, "every": 50, "duration": 3}
    run(make_values(tmp_path, faults=[fault]))
    first, again = inspected(tmp_path, 4), inspected(tmp_path, 6)
    assert "fault: repeated_batch" in again
    assert "sample 16, " in first
    assert first.split("batch of")[1] == again.split("batch of")[1]


def test_a_fork_of_a_fork_says_whose_data_a_step_read(tmp_path, inspected):
    first, second, third = (tmp_path / name for name in "abc")
    changes = {"save_every": 2, "keep_checkpoints": 9}
    run(make_values(first, **changes))
    changes["data"] = {"seed": 5}
    other = parse_config(make_values(second, **changes))
    run_pretraining(other, fork=Fork(first, 4))
    changes["optimizer"] = {"weight_decay": 0.2}
    same = parse_config(make_values(third, **changes))
    run_pretraining(same, fork=Fork(second, 8))
    for fork in (second, third):
        assert f"of the run {first}, which read other" in inspected(fork, 3)
    for step in (4, 8):
        assert f"sample {4 * step}, " in inspected(third, step)


def test_tokens_without_a_tokenizer_and_changed_data(
    tmp_path, inspected, capsys
):
    prefix = tmp_path / "data/x"
    data = write_random_dataset(prefix, seed=0)
    run(make_values(tmp_path / "run", data=data))
    shown = inspected(tmp_path / "run", 2)
    assert re.search(r"sample 8, token \d+: \[\d+, ", shown)
    as_bytes = inspected(tmp_path / "run", 2, "--tokenizer", "bytes")
    assert re.search(r"sample 8, token \d+: ['\"]", as_bytes)
    write_random_dataset(prefix, seed=1)
    assert main([str(tmp_path / "run"), "--step", "2"]) == 2
    assert "the data has changed since the run" in capsys.readouterr().err
    assert main([str(tmp_path / "run"), "--step", "12"]) == 2
    assert "has the steps 0 to 11" in capsys.readouterr().err
    assert main([str(tmp_path / "run")]) == 2
    assert "has no spike whose step" in capsys.readouterr().err
