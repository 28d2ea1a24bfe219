# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import json
import math
import types

import pytest
from adagc_lab.data.tokenizers import find_tokenizer
from adagc_lab.evaluate.saved import build_decoder, load_saved, to_hf
from adagc_lab.evaluate.scoring import Scorer
from lab.models.tiny import TINY

TASKS = "tests/lab/evaluate/tasks"


@pytest.fixture(autouse=True)
def no_caches_elsewhere(monkeypatch, tmp_path_factory):
    """The harness' data goes into a folder of the test session."""
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("lm_eval")
    cache = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)


def make_model(run):
    from adagc_lab.evaluate.harness import DecoderLM

    scorer = Scorer(build_decoder(load_saved(run)), batch_size=3)
    return DecoderLM(scorer, find_tokenizer("bytes"))


def their_model(directory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    given = {"device": "cpu", "batch_size": 3, "dtype": "float32"}
    return HFLM(str(directory), **given)


def requests(*arguments):
    return [
        types.SimpleNamespace(args=pair, task_name="test") for pair in arguments
    ]


LONG = "for index in range(10):\n    print(index)\n" * 3  # more than 64 bytes


@pytest.mark.parametrize("family", TINY)
def test_the_harness_own_model_gives_the_same(runs, tmp_path, family):
    to_hf(runs(family), tmp_path / "out")
    theirs = their_model(tmp_path / "out")
    ours = make_model(runs(family))
    pairs = requests(
        ("import ", "sys"),
        ("import ", "syn"),
        ("import", " os\nimport"),
        ("trailing  ", "space"),
        ("", "nothing before"),
        ("Größe = ", "'日本'"),
        (LONG, " x = 1"),
        ("y", LONG[:60]),
        ("a", "b"),
    )
    expected = theirs.loglikelihood(pairs, disable_tqdm=True)
    found = ours.loglikelihood(pairs)
    assert [s for s, _ in found] == pytest.approx(
        [s for s, _ in expected], abs=1e-4
    )
    assert [g for _, g in found] == [g for _, g in expected]
    with pytest.raises(ValueError, match="test generates text"):
        ours.generate_until(pairs)
    with pytest.raises(ValueError, match="test scores whole texts"):
        ours.loglikelihood_rolling(pairs)


def literal_accuracy(model):
    """Share of the local task's questions, without the harness."""
    with open(f"{TASKS}/python_next.jsonl") as file:
        questions = [json.loads(line) for line in file]
    right = normed = 0
    for question in questions:
        scores = [
            score
            for score, _ in model.loglikelihood(
                requests(
                    *((question["context"], c) for c in question["choices"])
                )
            )
        ]
        lengths = [len(choice) for choice in question["choices"]]
        ratios = [s / n for s, n in zip(scores, lengths, strict=True)]
        right += scores.index(max(scores)) == question["answer"]
        normed += ratios.index(max(ratios)) == question["answer"]
    return right / len(questions), normed / len(questions)


def test_command_scores_a_local_task(runs, tmp_path, command, capsys):
    output = tmp_path / "made/results.json"
    arguments = [str(runs("llama")), "--tasks", "python_next"]
    arguments += ["--include-path", TASKS, "--output", str(output)]
    assert command("evaluate")(arguments) == 0
    result = json.loads(output.read_text())
    assert result["step"] == 4
    assert result["clip"] == "adagc"
    assert result["settings"]["tokenizer"] == "bytes"
    scores = {
        (score["num_fewshot"], score["metric"]): score
        for score in result["tasks"]
    }
    assert scores.keys() == {
        (shots, metric) for shots in (0, 2) for metric in ("acc", "acc_norm")
    }
    expected = literal_accuracy(make_model(runs("llama")))
    assert (scores[0, "acc"]["value"], scores[0, "acc_norm"]["value"]) == (
        expected
    )
    assert scores[0, "acc"]["num_samples"] == 24
    p = expected[0]
    stderr = math.sqrt(p * (1 - p) / 23)
    assert scores[0, "acc"]["stderr"] == pytest.approx(stderr, abs=1e-9)
    printed = capsys.readouterr().out
    assert f"| python_next | 0 | acc | {100 * p:.2f} ±" in printed


def test_command_refuses(runs, tmp_path, command, capsys):
    run = command("evaluate")
    model = str(runs("llama"))
    local = ["--tasks", "python_nxt", "--include-path"]
    assert run([model, *local, TASKS]) == 2
    assert "did you mean 'python_next'" in capsys.readouterr().err
    assert run([model, *local, str(tmp_path / "none")]) == 2
    assert "there is no directory" in capsys.readouterr().err
