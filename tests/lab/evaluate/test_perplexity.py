# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Perplexity against literal sums, and the command."""

import json
import math

import numpy as np
import paddle
import pytest
from adagc_lab.data.text import TokenDataset
from adagc_lab.evaluate.perplexity import measure_perplexity
from adagc_lab.evaluate.saved import load_saved
from adagc_lab.record.files import RunRecord
from indexed import write_random_dataset
from lab.models.tiny import TINY
from lab.train.runs import make_values, pretrain
from pages import load_tool
from scipy.special import log_softmax


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a mixture of experts whose biases have moved."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    values = make_values(
        directory,
        model=TINY["ernie4_5_moe"],
        data={"seq_length": 24},
        clip={"name": "adagc", "t_start": 2},
        record={},
        max_steps=4,
        save_every=2,
        expert_bias_rate=0.05,
    )
    assert pretrain(values) == "finished"
    return directory


def test_perplexity_is_the_mean_over_all_labels(run):
    model = load_saved(run).model
    tokens = np.random.default_rng(0).integers(0, 256, 200)
    starts = tuple(range(0, 170, 17))
    dataset = TokenDataset(tokens, starts, 17, {})
    found = measure_perplexity(model, dataset)
    losses = []
    for start in starts:
        ids, labels = tokens[start : start + 17], tokens[start + 1 : start + 18]
        logits = model(paddle.to_tensor([ids])).numpy()[0]
        logs = log_softmax(logits.astype(np.float64), -1)
        losses += (-logs[np.arange(17), labels]).tolist()
    assert found["num_tokens"] == len(losses)
    assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    dataset = TokenDataset(np.arange(400), (0,), 8, {})
    with pytest.raises(ValueError, match="token 399"):
        measure_perplexity(model, dataset)


def test_the_command_scores_a_run_on_its_own_data_and_on_other(
    run, tmp_path, capsys
):
    main, output = load_tool("evaluate").main, tmp_path / "made/out.json"
    options = [str(run), "--output", str(output)]
    assert main(options) == 0
    assert "over 192 tokens of stdlib" in capsys.readouterr().out
    result = json.loads(output.read_text())
    assert (result["step"], result["clip"]) == (4, "adagc")
    last = RunRecord.load(run).metrics["eval_loss"][-1]
    assert result["loss"] == pytest.approx(last, abs=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))

    data = write_random_dataset(tmp_path / "data", seed=0)
    data |= {"validation_size": 5, "validation_fraction": 0.1}
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(make_values("unused", data=data)))
    assert main([*options, "--data", str(config)]) == 0
    assert f"of {data['prefix']}." in capsys.readouterr().out
    result = json.loads(output.read_text())
    assert result["num_tokens"] == 5 * 16
    assert result["loss"] > np.log(256) - 0.5  # random bytes
