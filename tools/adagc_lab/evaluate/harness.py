# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness over a decoder, which is a model of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from adagc_lab.data.tokenizers import Tokenizer
from adagc_lab.evaluate.scoring import Scorer
from paddle_adagc.checks import suggestion

_BOOTSTRAP_SAMPLES = 1000  # for metrics that have no closed standard error


def find_tasks(
    tasks: Sequence[str], include_path: str | os.PathLike[str] | None = None
) -> TaskManager:
    """Look up tasks, groups or tags: the harness', or your own (YAML)."""
    manager = TaskManager(
        include_path=include_path and str(include_path),
        include_defaults=include_path is None,
    )
    for task in tasks:
        if task not in manager.all_tasks:
            raise ValueError(
                f"unknown task {task!r}{suggestion(task, manager.all_tasks)}"
            )
    return manager


def evaluate_tasks(
    model: DecoderLM,
    tasks: Sequence[str],
    manager: TaskManager,
    *,
    num_fewshot: int = 0,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Run tasks; a row for every metric of every task and group asked for.

    A row has ``task``, ``metric`` (``acc``, or ``exact_match,strict-match``
    with the filter of the answers), ``num_fewshot`` (a task whose file fixes
    it to 0 keeps that), ``value``, ``stderr`` (None where the harness has
    none), ``num_samples`` (None for a group). Of a tag there are those of its
    tasks. ``limit`` scores the first examples of each task alone.
    """
    found = simple_evaluate(
        model=model,
        tasks=[*tasks],
        num_fewshot=num_fewshot,
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=_BOOTSTRAP_SAMPLES,
    )
    assert found is not None
    results, groups = found["results"], found["group_subtasks"]
    parts = {name for names in groups.values() for name in names}
    return [
        score
        for name in results
        if name in tasks or name not in parts
        for score in _scores(name, found)
    ]


def _scores(name: str, found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    result = found["results"][name]
    for key, value in result.items():
        metric, _, answers = key.partition(",")
        if metric.endswith("_stderr") or not isinstance(value, float):
            continue
        stderr = result.get(f"{metric}_stderr,{answers}")
        yield {
            "task": name,
            "metric": metric if answers in ("", "none") else key,
            "num_fewshot": int(found["n-shot"].get(name, 0)),
            "value": value,
            "stderr": stderr if isinstance(stderr, float) else None,
            "num_samples": found["n-samples"].get(name, {}).get("effective"),
        }


class DecoderLM(TemplateLM):
    """The harness' interface to a :class:`Scorer`.

    Tokens, truncation and the treatment of empty contexts are those of the
    harness' own Hugging Face models, so that scores can be compared.
    """

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.scorer = scorer
        self.text = tokenizer

    @property
    def eot_token_id(self) -> int:
        """Token that ends a document; where there is no context, the first."""
        return self.text.eos_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        return self.text.encode(string, add_special_tokens)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        pairs = [(context, rest) for _, context, rest in requests]
        return [*self.scorer.score(pairs)]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Refuse tasks that score whole texts."""
        raise ValueError(
            f"{requests[0].task_name} scores whole texts: only answers are "
            "scored here; --perplexity scores the validation data"
        )

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[str]:
        """Refuse tasks that generate: there is no key-value cache."""
        raise ValueError(
            f"{requests[0].task_name} generates text: only given answers are "
            "scored here; export the model (tools/convert.py to-hf) and run "
            "lm_eval on that"
        )
