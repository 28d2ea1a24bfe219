# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import math

import numpy as np
import pytest
from adagc_lab.evaluate.run import BENCHMARKS, evaluate, to_markdown
from adagc_lab.record.files import RunRecord
from indexed import write_random_dataset
from lab.train.runs import make_values


def test_command_without_the_harness(
    runs, tmp_path, command, capsys, monkeypatch
):
    run = command("evaluate")
    arguments = [str(runs("llama")), "--output", str(tmp_path / "out.json")]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "lm_eval" else found(name),
    )
    assert run([*arguments, "--tasks", "paper"]) == 2
    assert "pip install -e '.[eval]'" in capsys.readouterr().err
    assert run([*arguments, "--perplexity"]) == 0
    assert "over 192 tokens of stdlib" in capsys.readouterr().out
    result = json.loads((tmp_path / "out.json").read_text())
    assert "tasks" not in result
    loss = result["perplexity"]["loss"]
    assert result["perplexity"]["num_tokens"] == 8 * 24
    record = RunRecord.load(runs("llama"))  # its last evaluation
    assert loss == pytest.approx(record.metrics["eval_loss"][-1], abs=1e-6)
    assert result["perplexity"]["perplexity"] == pytest.approx(math.exp(loss))


def test_perplexity_of_other_data(runs, tmp_path):
    data = write_random_dataset(tmp_path / "data", seed=0)
    data |= {"validation_size": 5, "validation_fraction": 0.1}
    config = make_values("unused", data=data)
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    result = evaluate(
        runs("mixtral"), perplexity=True, data=str(tmp_path / "config.yaml")
    )
    assert result["perplexity"]["num_tokens"] == 5 * 16
    assert result["perplexity"]["loss"] > np.log(256) - 0.5  # random bytes
    assert f"of {data['prefix']}." in to_markdown(result)


def test_an_output_that_cannot_be_written(runs, tmp_path, command, capsys):
    run = command("evaluate")
    (tmp_path / "file").touch()
    arguments = [str(runs("llama")), "--perplexity"]
    for output, message in (
        (tmp_path / "file/out.json", f"{tmp_path}/file is a file"),
        (tmp_path, "a directory: name a file"),
    ):
        assert run([*arguments, "--output", str(output)]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert not printed.out  # refused before scoring
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_paper_s_metrics_and_their_mean():
    tasks = [
        {"task": task, "metric": metric, "num_fewshot": shots, "stderr": 0.01}
        | {"value": 0.5 if metric == "acc_norm" else 0.2}
        for shots in (0, 2)
        for task in BENCHMARKS
        for metric in ("acc", "acc_norm")
    ]
    table = to_markdown({"model": "m", "step": None, "tasks": tasks})
    assert "| ARC-E | 2 | acc_norm | 50.00 ± 1.00 |" in table
    assert "| MMLU | 0 | acc | 20.00 ± 1.00 |" in table
    assert "| mean | 0 |  | 40.00 |" in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to score"),
        (["--perplexity", "--num-fewshot", "0", "-1"], "-1: not below 0"),
    ],
)
def test_refuses_settings(command, capsys, options, message):
    with pytest.raises(SystemExit):
        command("evaluate")(["run", *options])
    assert message in capsys.readouterr().err


def test_the_harness_has_the_benchmarks():
    tasks = pytest.importorskip("lm_eval.tasks")
    known = tasks.TaskManager().all_tasks
    assert {*BENCHMARKS} <= {*known}
