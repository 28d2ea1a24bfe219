# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Score a saved decoder: perplexity and tasks, as JSON and as a table."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle_adagc
from paddle_adagc.checks import check_installed
from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import build_datasets
from paddle_adagc.lab.evaluate.paper import (
    BENCHMARKS,
    matching_preset,
    paper_accuracies,
)
from paddle_adagc.lab.evaluate.saved import (
    SavedDecoder,
    build_decoder,
    load_saved,
)
from paddle_adagc.lab.evaluate.scoring import Scorer, measure_perplexity
from paddle_adagc.lab.evaluate.tokenizer import (
    TextTokenizer,
    document_end,
    tokenizer_of,
)
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.train.parse import load_config

PAPER = "paper"
"""Task name that stands for all of the paper's benchmarks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Settings of an evaluation."""

    model: str | os.PathLike[str]
    """See :func:`paddle_adagc.lab.evaluate.saved.load_saved`."""

    tasks: tuple[str, ...] = ()
    """Tasks of lm-evaluation-harness; ``"paper"`` stands for the paper's."""

    num_fewshot: tuple[int, ...] = (0, 2)
    """Solved examples before each question; the paper has 0 and 2."""

    include_path: str | None = None
    """Directory with your own task files."""

    limit: int | None = None
    """Examples of each task; default: all of them."""

    perplexity: bool = False
    """Measure the perplexity of validation data."""

    data: str | None = None
    """Run config (YAML) whose ``data`` section names the data; default: the
    data that the run was trained with."""

    validation_size: int | None = None
    """Validation samples, instead of the config's ``validation_size``."""

    tokenizer: str | None = None
    """See :func:`paddle_adagc.lab.evaluate.tokenizer.tokenizer_of`."""

    adds_special_tokens: bool = False
    """See :class:`paddle_adagc.lab.evaluate.tokenizer.TextTokenizer`."""

    batch_size: int = 8
    """Sequences at a time."""

    max_length: int | None = None
    """Tokens that the model sees at once; default: all of its positions."""

    verify: bool = False
    """See :func:`paddle_adagc.lab.evaluate.saved.load_saved`."""

    shows_bar: bool = False
    """Show progress bars."""

    def __post_init__(self) -> None:
        if not self.tasks and not self.perplexity:
            raise ValueError("nothing to score: give tasks or the perplexity")
        if any(number < 0 for number in self.num_fewshot):
            raise ValueError(f"num_fewshot={self.num_fewshot}: not below 0")


def evaluate(config: EvaluationConfig) -> dict[str, Any]:
    """Score a decoder.

    Returns:
        What JSON can hold: ``model``, ``checkpoint``, ``step``, ``clip``,
        ``paper_model``, ``settings``, ``versions``, and as asked for
        ``perplexity`` (``loss`` in nats a token, ``perplexity``,
        ``num_tokens``, ``data``) and ``tasks`` (a list of
        :class:`~paddle_adagc.lab.evaluate.harness.TaskScore`).

    Raises:
        FileNotFoundError: There is no model, data, or tokenizer.
        ImportError: Tasks need the extra ``[eval]``.
        OSError: A task's data cannot be fetched.
        ValueError: Settings that do not go together.
    """
    _check_harness(config)
    data = None if config.data is None else load_config(config.data).data
    saved = load_saved(config.model, verify=config.verify)
    tokenizer = tokenizer_of(saved, config.tokenizer)
    if config.tasks and tokenizer is None:
        raise ValueError(
            f"{saved.directory} does not say which tokenizer its data had: "
            "give one"
        )
    scorer = Scorer(build_decoder(saved), config.batch_size, config.max_length)
    trained = saved.run.get("config", {})
    result: dict[str, Any] = {
        "model": str(config.model),
        "checkpoint": str(saved.directory),
        "step": saved.step,
        "clip": trained.get("clip", {}).get("name"),
        "paper_model": matching_preset(saved.config),
        "settings": {
            "tokenizer": tokenizer,
            "adds_special_tokens": config.adds_special_tokens,
            "batch_size": config.batch_size,
            "max_length": scorer.max_length,
            "trained_length": trained.get("data", {}).get("seq_length"),
            "limit": config.limit,
        },
        "versions": {"paddle_adagc": paddle_adagc.__version__},
    }
    if config.perplexity:
        result["perplexity"] = _perplexity(config, data, saved, scorer)
    if config.tasks:
        assert tokenizer is not None
        text = TextTokenizer(
            tokenizer, config.adds_special_tokens, document_end(saved)
        )
        result["tasks"] = _run_tasks(config, scorer, text)
        result["versions"]["lm_eval"] = importlib.metadata.version("lm_eval")
    return result


def _check_harness(config: EvaluationConfig) -> None:
    if config.tasks:
        check_installed("lm_eval", "eval")


def _perplexity(
    config: EvaluationConfig,
    data: DataConfig | None,
    saved: SavedDecoder,
    scorer: Scorer,
) -> dict[str, Any]:
    data = _data_config(config, data, saved)
    _, dataset = build_datasets(data, 1)
    found = measure_perplexity(
        scorer.model, dataset, config.batch_size, shows_bar=config.shows_bar
    )
    return {
        "loss": found.loss,
        "perplexity": found.perplexity,
        "num_tokens": found.num_tokens,
        "data": dataclasses.asdict(data),
    }


def _data_config(
    config: EvaluationConfig, data: DataConfig | None, saved: SavedDecoder
) -> DataConfig:
    """Return the given data, or else the run's."""
    if data is None and saved.run:
        data = DataConfig(**saved.run["config"]["data"])
    if data is None:
        raise ValueError(
            f"{saved.directory} does not say which data it was trained with: "
            "give --data CONFIG, a run config whose data section does"
        )
    if config.validation_size is None:
        return data
    return dataclasses.replace(data, validation_size=config.validation_size)


def _run_tasks(
    config: EvaluationConfig, scorer: Scorer, tokenizer: TextTokenizer
) -> list[dict[str, Any]]:
    from paddle_adagc.lab.evaluate.harness import evaluate_tasks, find_tasks
    from paddle_adagc.lab.evaluate.language_model import DecoderLM

    tasks: list[str] = []
    for name in config.tasks:
        paper = [benchmark.task for benchmark in BENCHMARKS]
        tasks += paper if name == PAPER else [name]
    manager = find_tasks(tasks, config.include_path)
    model = DecoderLM(scorer, tokenizer, shows_bar=config.shows_bar)
    return [
        dataclasses.asdict(score)
        for number in config.num_fewshot
        for score in evaluate_tasks(
            model, tasks, manager, num_fewshot=number, limit=config.limit
        )
    ]


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
    rows = []
    metrics = {benchmark.task: benchmark for benchmark in BENCHMARKS}
    for shots in dict.fromkeys(score["num_fewshot"] for score in scores):
        paper = paper_accuracies(paper_model, shots)
        found = {}
        for score in scores:
            benchmark = metrics.get(score["task"])
            if score["num_fewshot"] != shots or (
                benchmark and benchmark.metric != score["metric"]
            ):
                continue
            label = benchmark.label if benchmark else score["task"]
            cells = [label, str(shots), score["metric"], _value(score)]
            for method in methods:
                accuracy = paper.get(method, {}).get(score["task"])
                cells.append("–" if accuracy is None else f"{accuracy:.2f}")
            rows.append(cells)
            if benchmark:
                found[benchmark.task] = 100 * score["value"]
        if found.keys() == metrics.keys():
            means = [statistics.fmean(found.values())]
            means += [statistics.fmean(paper[m].values()) for m in paper]
            cells = ["mean", str(shots), "", *(f"{m:.2f}" for m in means)]
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
