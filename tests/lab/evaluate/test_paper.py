# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import statistics

import pytest

from paddle_adagc.lab.evaluate.paper import (
    BENCHMARKS,
    PRESETS,
    matching_preset,
    paper_accuracies,
)
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import preset


# The tables' own averages.
@pytest.mark.parametrize(
    ("name", "shots", "method", "average"),
    [
        ("llama2-1.3b", 0, "GlobalGC", 46.32),
        ("llama2-1.3b", 0, "AdaGC", 46.33),
        ("llama2-1.3b", 2, "ClipByValue", 47.61),
        ("llama2-1.3b", 2, "AdaGC", 47.56),
        ("llama2-7b", 0, "AGC", 49.34),
        ("llama2-7b", 0, "AdaGC", 51.01),
        ("llama2-7b", 2, "Clippy", 51.27),
        ("llama2-7b", 2, "AdaGC", 53.47),
        ("qwen3-1.7b", 0, "ZClip", 48.42),
        ("qwen3-1.7b", 0, "AdaGC", 50.37),
        ("qwen3-1.7b", 2, "AdaGC", 52.64),
        ("mixtral-8x1b", 0, "GlobalGC", 47.74),
        ("mixtral-8x1b", 0, "AdaGC", 49.01),
        ("mixtral-8x1b", 2, "AdaGC", 51.61),
    ],
)
def test_rows_have_the_paper_s_averages(name, shots, method, average):
    accuracies = paper_accuracies(name, shots)[method]
    assert [*accuracies] == [benchmark.task for benchmark in BENCHMARKS]
    # The paper cuts some averages and rounds others.
    assert statistics.fmean(accuracies.values()) == pytest.approx(
        average, abs=0.01
    )


def test_every_model_has_both_tables():
    for name in PRESETS:
        zero, two = paper_accuracies(name, 0), paper_accuracies(name, 2)
        assert zero.keys() == two.keys()
        assert {"GlobalGC", "AdaGC"} <= zero.keys()
    assert paper_accuracies("llama2-7b", 1) == {}
    assert paper_accuracies(None, 0) == {}


def test_models_are_recognised_by_their_tensors():
    for name in PRESETS:
        assert matching_preset(preset(name)) == name
    assert matching_preset(DecoderConfig()) is None


def test_the_harness_has_the_benchmarks():
    tasks = pytest.importorskip("lm_eval.tasks")
    known = tasks.TaskManager().all_tasks
    assert {benchmark.task for benchmark in BENCHMARKS} <= {*known}
