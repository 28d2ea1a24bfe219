# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a saved decoder on the validation part of its data."""

from __future__ import annotations

import math
import os
from typing import Any

import paddle
from paddle.io import BatchSampler
from tqdm import tqdm

import paddle_adagc
from adagc_lab.data.config import TEXT_KINDS
from adagc_lab.data.loading import (
    BatchLoader,
    check_fingerprint,
    check_held_out,
    collate_batch,
)
from adagc_lab.data.text import TokenDataset, build_datasets
from adagc_lab.evaluate.saved import load_saved
from adagc_lab.models.decoder import DecoderForCausalLM, cross_entropy
from adagc_lab.train.parse import load_config, parse_config
from adagc_lab.train.start import find_changes
from paddle_adagc.checks import check_choice

_BATCH_SIZE = 8


def evaluate(
    model: str | os.PathLike[str], *, data: str | None = None
) -> dict[str, Any]:
    """Score a saved decoder; gives what JSON can hold.

    The arguments are the options of ``tools/evaluate.py``.
    """
    saved = load_saved(model)
    trained_on = None
    if saved.run:
        values = saved.run["config"]
        train = {**values["train"], "output_dir": "-"}
        trained_on = parse_config({**values, "train": train}).data
    config = trained_on if data is None else load_config(data).data
    if config is None:
        raise ValueError(
            f"{saved.checkpoint} does not say which data it was trained with: "
            "give --data CONFIG"
        )
    if trained_on is not None:
        old, new = trained_on.model_dump(), config.model_dump()
        check_held_out(find_changes(old, new, "data"), config.kind)
    check_choice("data.kind", config.kind, TEXT_KINDS)
    trained, dataset = build_datasets(config, 1)
    if data is None:
        check_fingerprint(
            trained.fingerprint, saved.run, ", or give --data CONFIG"
        )
    return {
        "model": str(model),
        "checkpoint": str(saved.checkpoint),
        "step": saved.step,
        "clip": saved.run.get("config", {}).get("clip", {}).get("name"),
        "data": config.model_dump(),
        "versions": {"paddle_adagc": paddle_adagc.__version__},
        **measure_perplexity(saved.model, dataset),
    }


@paddle.no_grad()
def measure_perplexity(
    model: DecoderForCausalLM, dataset: TokenDataset
) -> dict[str, float]:
    """Average the loss over all labels of a dataset.

    Gives ``loss`` in nats per label, ``num_tokens``, the number of labels, and
    ``perplexity``, `exp(loss)`, infinite where that overflows.
    """
    if dataset.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the data has token {dataset.vocab_size - 1}, the model "
            f"{model.config.vocab_size} tokens: give data of its tokenizer"
        )
    total, count = 0.0, 0
    sampler = BatchSampler(dataset, batch_size=_BATCH_SIZE)
    loader = BatchLoader(
        dataset, batch_sampler=sampler, collate_fn=collate_batch
    )
    for batch in tqdm(loader, "perplexity", disable=None):
        labels = batch["labels"]
        loss = cross_entropy(model(batch["input_ids"]), labels)
        total += float(loss) * labels.size
        count += labels.size
    mean = total / count
    perplexity = math.exp(mean) if mean < 700 else math.inf
    return {"loss": mean, "num_tokens": count, "perplexity": perplexity}


def to_text(result: dict[str, Any]) -> str:
    """Format the result of :func:`evaluate` for people."""
    data = result["data"]
    return (
        f"{result['model']}, step {result['step']}\n"
        f"Validation: loss {result['loss']:.4f} nats, perplexity "
        f"{result['perplexity']:.4g}, over {result['num_tokens']:,} tokens of "
        f"{data['prefix'] or data['kind']}."
    )
