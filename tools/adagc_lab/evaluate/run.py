# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Score a saved decoder: perplexity and tasks, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import statistics
from collections.abc import Sequence
from typing import Any

import paddle_adagc
from adagc_lab.data.config import DataConfig
from adagc_lab.data.datasets import build_datasets
from adagc_lab.data.tokenizers import find_tokenizer
from adagc_lab.evaluate.saved import build_decoder, load_saved
from adagc_lab.evaluate.scoring import Scorer, measure_perplexity
from adagc_lab.markdown import markdown_table
from adagc_lab.train.parse import load_config

PAPER = "paper"  # task name that stands for all of the paper's benchmarks

BENCHMARKS = {
    "arc_easy": ("ARC-E", "acc_norm"),
    "arc_challenge": ("ARC-C", "acc_norm"),
    "boolq": ("BoolQ", "acc"),
    "hellaswag": ("HellaSwag", "acc_norm"),
    "openbookqa": ("OBQA", "acc_norm"),
    "piqa": ("PIQA", "acc_norm"),
    "winogrande": ("WinoGrande", "acc"),
    "mmlu": ("MMLU", "acc"),
    "sciq": ("SciQ", "acc_norm"),
}
"""Task in lm-evaluation-harness -> column and metric of the paper's tables
llama_eval_zero_shot_benchmarks_all and llama_eval_two_shot_benchmarks_all. (For
PIQA the tables say acc_norm, the paragraph "Standard Benchmark" acc.)"""


def evaluate(
    model: str | os.PathLike[str],
    *,
    tasks: Sequence[str] = (),
    num_fewshot: Sequence[int] = (0, 2),
    include_path: str | None = None,
    limit: int | None = None,
    perplexity: bool = False,
    data: str | None = None,
    tokenizer: str | None = None,
    batch_size: int = 8,
    verify: bool = False,
) -> dict[str, Any]:
    """Score a saved decoder; gives what JSON can hold.

    The arguments are the options of ``tools/evaluate.py``.
    """
    data_config = None if data is None else load_config(data).data
    saved = load_saved(model, verify=verify)
    tokenizer = saved.tokenizer(tokenizer)
    if tasks and tokenizer is None:
        raise ValueError(
            f"{saved.directory} does not say which tokenizer its data had: "
            "give one"
        )
    scorer = Scorer(build_decoder(saved), batch_size)
    trained = saved.run.get("config", {})
    result: dict[str, Any] = {
        "model": str(model),
        "checkpoint": str(saved.directory),
        "step": saved.step,
        "clip": trained.get("clip", {}).get("name"),
        "settings": {
            "tokenizer": tokenizer,
            "batch_size": batch_size,
            "max_length": scorer.max_length,
            "trained_length": trained.get("data", {}).get("seq_length"),
            "limit": limit,
        },
        "versions": {"paddle_adagc": paddle_adagc.__version__},
    }
    if perplexity:
        if data_config is None and not saved.run:
            raise ValueError(
                f"{saved.directory} does not say which data it was trained "
                "with: give --data CONFIG"
            )
        data_config = data_config or DataConfig(**saved.data)
        _, dataset = build_datasets(data_config, 1)
        result["perplexity"] = {
            **measure_perplexity(scorer.model, dataset, batch_size),
            "data": dataclasses.asdict(data_config),
        }
    if tasks:
        from adagc_lab.evaluate import harness

        assert tokenizer is not None
        text = find_tokenizer(tokenizer, eos_id=saved.document_end)
        names: list[str] = []
        for name in tasks:
            names += BENCHMARKS if name == PAPER else [name]
        manager = harness.find_tasks(names, include_path)
        lm = harness.DecoderLM(scorer, text)
        result["tasks"] = [
            score
            for number in num_fewshot
            for score in harness.evaluate_tasks(
                lm, names, manager, num_fewshot=number, limit=limit
            )
        ]
        result["versions"]["lm_eval"] = importlib.metadata.version("lm_eval")
    return result


def to_markdown(result: dict[str, Any]) -> str:
    """Format the result of :func:`evaluate` as Markdown.

    The paper's benchmarks show the paper's metric, other tasks all metrics.
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
        lines.append(_task_table(result["tasks"]))
    return "\n".join(lines)


def _task_table(scores: Sequence[dict[str, Any]]) -> str:
    rows = []
    for shots in dict.fromkeys(score["num_fewshot"] for score in scores):
        values = {}
        for score in scores:
            task, metric = score["task"], score["metric"]
            label, wanted = BENCHMARKS.get(task, (task, metric))
            if score["num_fewshot"] != shots or metric != wanted:
                continue
            rows.append([label, str(shots), metric, _value(score)])
            if task in BENCHMARKS:
                values[task] = 100 * score["value"]
        if values.keys() == BENCHMARKS.keys():
            mean = statistics.fmean(values.values())
            rows.append(["mean", str(shots), "", f"{mean:.2f}"])
    return markdown_table(["task", "shots", "metric", "value"], rows, left=3)


def _value(score: dict[str, Any]) -> str:
    """Format a metric; shares of examples become percentages."""
    is_share = score["metric"].startswith(("acc", "exact_match"))
    factor, spec = (100, ".2f") if is_share else (1, ".4g")
    value = f"{factor * score['value']:{spec}}"
    if score["stderr"] is None:
        return value
    return f"{value} ± {factor * score['stderr']:{spec}}"
