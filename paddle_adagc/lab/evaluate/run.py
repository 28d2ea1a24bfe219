# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Score a saved decoder: perplexity and tasks, as JSON and as a table.

Beside the scores of the paper's models stand the paper's own.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import paddle_adagc
from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import build_datasets
from paddle_adagc.lab.data.tokenizers import TextTokenizer
from paddle_adagc.lab.evaluate.saved import (
    SavedDecoder,
    build_decoder,
    load_saved,
)
from paddle_adagc.lab.evaluate.scoring import Scorer, measure_perplexity
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.families import preset
from paddle_adagc.lab.models.initialization import plain_config
from paddle_adagc.lab.models.shapes import parameter_shapes
from paddle_adagc.lab.train.parse import load_config

PAPER = "paper"
"""Task name that stands for all of the paper's benchmarks."""


class Benchmark(NamedTuple):
    """A column of the paper's accuracy tables."""

    label: str
    task: str
    """Name in lm-evaluation-harness."""

    metric: str


BENCHMARKS = (
    Benchmark("ARC-E", "arc_easy", "acc_norm"),
    Benchmark("ARC-C", "arc_challenge", "acc_norm"),
    Benchmark("BoolQ", "boolq", "acc"),
    Benchmark("HellaSwag", "hellaswag", "acc_norm"),
    Benchmark("OBQA", "openbookqa", "acc_norm"),
    Benchmark("PIQA", "piqa", "acc_norm"),
    Benchmark("WinoGrande", "winogrande", "acc"),
    Benchmark("MMLU", "mmlu", "acc"),
    Benchmark("SciQ", "sciq", "acc_norm"),
)
"""Columns and metrics of the tables llama_eval_zero_shot_benchmarks_all and
llama_eval_two_shot_benchmarks_all. (For PIQA the tables say acc_norm, the
paragraph "Standard Benchmark" acc.)"""

TASKS = tuple(benchmark.task for benchmark in BENCHMARKS)

# Shots, preset, method, and a percentage per benchmark.
_TABLES = """
0 llama2-1.3b  GlobalGC    43.18 25.68 57.19 46.62 30.20 69.97 52.64 22.97 68.40
0 llama2-1.3b  ClipByValue 42.17 25.68 59.94 44.11 30.40 69.59 53.28 22.99 68.00
0 llama2-1.3b  Clippy      41.71 24.66 56.51 45.43 30.00 69.21 54.85 22.90 67.50
0 llama2-1.3b  AdaGC       42.09 25.51 58.01 47.29 30.40 69.70 52.33 22.98 68.70
0 llama2-7b    GlobalGC    49.49 27.56 56.30 56.06 33.60 74.59 55.33 23.12 71.20
0 llama2-7b    ClipByValue 46.21 26.88 57.03 53.49 33.20 71.65 53.59 23.36 70.50
0 llama2-7b    AGC         48.15 28.16 52.87 55.47 32.80 72.74 57.85 24.33 71.70
0 llama2-7b    Clippy      47.69 27.73 57.46 53.34 32.40 72.74 54.38 25.36 73.40
0 llama2-7b    AdaGC       49.58 28.92 57.28 57.94 32.80 74.32 58.09 23.62 76.60
0 qwen3-1.7b   GlobalGC    45.88 25.77 55.50 52.89 32.00 71.98 55.56 23.16 73.00
0 qwen3-1.7b   ZClip       46.97 26.96 55.99 53.98 31.40 72.52 53.43 23.07 71.40
0 qwen3-1.7b   AdaGC       48.15 27.13 59.60 56.08 33.40 73.12 56.75 23.28 75.80
0 mixtral-8x1b GlobalGC    44.70 25.94 56.57 53.08 33.00 71.60 54.70 22.91 67.20
0 mixtral-8x1b AdaGC       46.68 26.37 58.93 55.85 32.20 73.12 54.38 23.22 70.30
2 llama2-1.3b  GlobalGC    47.26 25.60 50.31 46.44 32.20 69.64 52.33 25.07 77.80
2 llama2-1.3b  ClipByValue 47.10 25.77 56.54 43.97 30.00 68.88 52.96 26.09 77.20
2 llama2-1.3b  Clippy      46.55 25.85 49.76 45.71 30.00 70.02 53.20 25.69 77.70
2 llama2-1.3b  AdaGC       46.04 26.19 49.72 47.51 31.00 69.70 54.38 24.98 78.50
2 llama2-7b    GlobalGC    55.81 28.58 60.70 56.54 33.00 73.72 56.75 25.51 83.20
2 llama2-7b    ClipByValue 51.94 26.88 57.55 53.36 32.40 72.31 54.14 26.63 81.60
2 llama2-7b    AGC         52.95 28.67 56.15 55.69 35.40 73.07 56.43 26.88 82.80
2 llama2-7b    Clippy      52.86 29.10 56.48 53.76 31.80 73.07 55.72 26.03 82.60
2 llama2-7b    AdaGC       56.86 29.61 59.36 57.89 33.60 73.99 57.62 26.46 85.90
2 qwen3-1.7b   GlobalGC    50.46 26.79 57.77 52.60 34.20 72.42 55.56 23.91 83.50
2 qwen3-1.7b   ZClip       52.99 27.82 56.70 54.57 31.80 73.45 55.80 24.95 84.60
2 qwen3-1.7b   AdaGC       54.46 28.07 60.92 56.48 33.40 73.83 57.77 24.75 84.10
2 mixtral-8x1b GlobalGC    50.34 27.39 58.81 52.96 34.20 71.16 54.06 25.37 79.90
2 mixtral-8x1b AdaGC       53.83 28.42 58.69 55.66 33.80 73.07 54.14 25.12 81.80
"""

PRESETS = (*dict.fromkeys(row.split()[1] for row in _TABLES.split("\n")[1:-1]),)
"""Models whose accuracies the paper reports."""


def paper_accuracies(
    preset_name: str | None, num_fewshot: int
) -> dict[str, dict[str, float]]:
    """Return the paper's percentages for a model, by method and by task.

    Empty if the paper has none: its models are :data:`PRESETS`, and its
    numbers of examples 0 and 2.
    """
    rows = {}
    for line in _TABLES.strip().splitlines():
        shots, name, method, *values = line.split()
        if int(shots) == num_fewshot and name == preset_name:
            rows[method] = dict(zip(TASKS, map(float, values), strict=True))
    return rows


def matching_preset(config: DecoderConfig) -> str | None:
    """Return the paper's model with the same parameter shapes, if any."""
    shapes = parameter_shapes(plain_config(config))
    for name in PRESETS:
        if parameter_shapes(preset(name)) == shapes:
            return name
    return None


def evaluate(
    model: str | os.PathLike[str],
    *,
    tasks: Sequence[str] = (),
    num_fewshot: Sequence[int] = (0, 2),
    include_path: str | None = None,
    limit: int | None = None,
    perplexity: bool = False,
    data: str | None = None,
    validation_size: int | None = None,
    tokenizer: str | None = None,
    adds_special_tokens: bool = False,
    batch_size: int = 8,
    max_length: int | None = None,
    verify: bool = False,
    shows_bar: bool = False,
) -> dict[str, Any]:
    """Score a saved decoder; gives what JSON can hold.

    The arguments are the options of ``tools/evaluate.py``. As asked for
    ``perplexity`` (``loss`` in nats a token) and ``tasks`` (see
    :func:`paddle_adagc.lab.evaluate.harness.evaluate_tasks`).
    """
    data_config = None if data is None else load_config(data).data
    saved = load_saved(model, verify=verify)
    tokenizer = saved.tokenizer(tokenizer)
    if tasks and tokenizer is None:
        raise ValueError(
            f"{saved.directory} does not say which tokenizer its data had: "
            "give one"
        )
    scorer = Scorer(build_decoder(saved), batch_size, max_length)
    trained = saved.run.get("config", {})
    result: dict[str, Any] = {
        "model": str(model),
        "checkpoint": str(saved.directory),
        "step": saved.step,
        "clip": trained.get("clip", {}).get("name"),
        "paper_model": matching_preset(saved.config),
        "settings": {
            "tokenizer": tokenizer,
            "adds_special_tokens": adds_special_tokens,
            "batch_size": batch_size,
            "max_length": scorer.max_length,
            "trained_length": trained.get("data", {}).get("seq_length"),
            "limit": limit,
        },
        "versions": {"paddle_adagc": paddle_adagc.__version__},
    }
    if perplexity:
        if data_config is None:
            data_config = _trained_with(saved)
        if validation_size is not None:
            data_config = dataclasses.replace(
                data_config, validation_size=validation_size
            )
        _, dataset = build_datasets(data_config, 1)
        found = measure_perplexity(
            scorer.model, dataset, batch_size, shows_bar=shows_bar
        )
        result["perplexity"] = {
            **found._asdict(),
            "perplexity": found.perplexity,
            "data": dataclasses.asdict(data_config),
        }
    if tasks:
        from paddle_adagc.lab.evaluate import harness

        assert tokenizer is not None
        text = TextTokenizer(tokenizer, adds_special_tokens, saved.document_end)
        names: list[str] = []
        for name in tasks:
            names += TASKS if name == PAPER else [name]
        manager = harness.find_tasks(names, include_path)
        lm = harness.DecoderLM(scorer, text, shows_bar=shows_bar)
        result["tasks"] = [
            score
            for number in num_fewshot
            for score in harness.evaluate_tasks(
                lm, names, manager, num_fewshot=number, limit=limit
            )
        ]
        result["versions"]["lm_eval"] = importlib.metadata.version("lm_eval")
    return result


def _trained_with(saved: SavedDecoder) -> DataConfig:
    if not saved.run:
        raise ValueError(
            f"{saved.directory} does not say which data it was trained with: "
            "give --data CONFIG, a run config whose data section does"
        )
    return DataConfig(**saved.data)


def to_markdown(result: dict[str, Any]) -> str:
    """Format the result of :func:`evaluate` as Markdown.

    Accuracies are percentages, with the paper's numbers beside them if the
    model is one of the paper's. The paper's benchmarks show the paper's metric;
    for your own tasks all metrics are shown.
    """
    step = "" if result["step"] is None else f", step {result['step']}"
    lines = [f"{result['model']}{step}", ""]
    if "perplexity" in result:
        found = result["perplexity"]
        lines += [
            f"Validation: loss {found['loss']:.4f} nats, perplexity "
            f"{found['perplexity']:.4g}, over {found['num_tokens']:,} tokens "
            f"of {found['data']['prefix'] or found['data']['kind']}.",
            "",
        ]
    if "tasks" in result:
        lines.append(_task_table(result["tasks"], result["paper_model"]))
    return "\n".join(lines)


def _task_table(
    scores: Sequence[dict[str, Any]], paper_model: str | None
) -> str:
    methods = [*paper_accuracies(paper_model, 0)]
    columns = ["task", "shots", "metric", "here"]
    columns += [f"paper: {method}" for method in methods]
    known = {benchmark.task: benchmark for benchmark in BENCHMARKS}
    scores = [
        score
        for score in scores
        if score["task"] not in known
        or score["metric"] == known[score["task"]].metric
    ]
    rows = []
    for shots in dict.fromkeys(score["num_fewshot"] for score in scores):
        paper = paper_accuracies(paper_model, shots)
        found = {}
        for score in scores:
            if score["num_fewshot"] != shots:
                continue
            task = label = score["task"]
            if task in known:
                label = known[task].label
                found[task] = 100 * score["value"]
            accuracies = [paper.get(method, {}).get(task) for method in methods]
            cells = ["–" if x is None else f"{x:.2f}" for x in accuracies]
            rows.append(
                [label, str(shots), score["metric"], _value(score), *cells]
            )
        if found.keys() == known.keys():
            means = [
                f"{statistics.fmean(values.values()):.2f}"
                for values in (found, *paper.values())
            ]
            cells = ["mean", str(shots), "", *means]
            rows.append(cells + ["–"] * (len(columns) - len(cells)))
    return markdown_table(columns, rows, left=3)


def _value(score: dict[str, Any]) -> str:
    """Format a metric; shares of examples become percentages."""
    is_share = score["metric"].startswith(("acc", "exact_match"))
    factor, spec = (100, ".2f") if is_share else (1, ".4g")
    value = f"{factor * score['value']:{spec}}"
    if score["stderr"] is None:
        return value
    return f"{value} ± {factor * score['stderr']:{spec}}"


def default_output(model: str | os.PathLike[str]) -> Path:
    """Return the default file for the results, beside the model's directory.

    The directory itself holds only what the run or the export wrote.
    """
    path = Path(model)
    return path.absolute().with_name(f"{path.absolute().name}-evaluation.json")
