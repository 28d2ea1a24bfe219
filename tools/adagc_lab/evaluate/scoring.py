# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods and perplexity of a decoder."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import paddle
from paddle import Tensor
from paddle.io import BatchSampler, DataLoader
from tqdm import tqdm

from adagc_lab.data.datasets import TokenDataset, collate_batch
from adagc_lab.models.decoder import DecoderForCausalLM
from paddle_adagc.checks import check_integer

Tokens = Sequence[int]


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Natural logarithm of each token's probability, float32 [...].

    ``logits`` are [..., vocab], ``tokens`` [...] int64.
    """
    logits = logits.astype("float32")
    chosen = paddle.take_along_axis(logits, tokens.unsqueeze(-1), -1)
    return chosen.squeeze(-1) - paddle.logsumexp(logits, -1)


class Score(NamedTuple):
    """A decoder's score of a continuation."""

    log_likelihood: float  # sum over the continuation's tokens, in nats
    is_greedy: bool  # whether each of its tokens is the likeliest one


class Scorer:
    """Runs a decoder over token lists of any lengths, in batches.

    Shorter lists of a batch are padded on the right, which a causal model does
    not see.
    """

    def __init__(self, model: DecoderForCausalLM, batch_size: int = 8) -> None:
        self.model = model
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.max_length = model.config.max_position_embeddings

    def score(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[Score]:
        """Score pairs of a context and its continuation, neither empty.

        A pair that is too long loses tokens of its context, from the left.
        Pairs that differ only in their last token share a pass.
        """
        shared = collections.defaultdict(list)
        for index, pair in enumerate(pairs):
            shared[self._input(*pair)].append(index)
        scores: dict[int, Score] = {}
        ordered = sorted(shared, key=len, reverse=True)
        starts = range(0, len(ordered), self.batch_size)
        for start in tqdm(starts, "scoring", disable=None):
            batch = ordered[start : start + self.batch_size]
            for tokens, row in zip(batch, self._logits(batch), strict=True):
                for index in shared[tokens]:
                    rest = paddle.to_tensor([*pairs[index][1]], dtype="int64")
                    logits = row[len(tokens) - len(rest) : len(tokens)]
                    total = log_probabilities(logits, rest).astype("float64")
                    is_greedy = (logits.argmax(-1) == rest).all()
                    scores[index] = Score(float(total.sum()), bool(is_greedy))
        return [scores[index] for index in range(len(pairs))]

    def _input(self, context: Tokens, continuation: Tokens) -> tuple[int, ...]:
        """Return the input whose last outputs predict the continuation."""
        if not context or not continuation:
            raise ValueError(
                f"context {[*context]} and continuation {[*continuation]}: "
                "neither may be empty"
            )
        if len(continuation) > self.max_length:
            raise ValueError(
                f"a continuation of {len(continuation)} tokens, and the model "
                f"has {self.max_length} positions: shorten it"
            )
        return (*context, *continuation)[-self.max_length - 1 : -1]

    @paddle.no_grad()
    def _logits(self, rows: Sequence[Tokens]) -> Tensor:
        """[rows, longest, vocab]."""
        longest = max(map(len, rows))
        ids = np.zeros([len(rows), longest], np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
        return self.model(paddle.to_tensor(ids))


@paddle.no_grad()
def measure_perplexity(
    model: DecoderForCausalLM, dataset: TokenDataset, batch_size: int = 8
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
    sampler = BatchSampler(dataset, batch_size=batch_size)
    loader = DataLoader(
        dataset, batch_sampler=sampler, collate_fn=collate_batch
    )
    for batch in tqdm(loader, "perplexity", disable=None):
        logits = model(batch["input_ids"])
        found = log_probabilities(logits, batch["labels"])
        total -= float(found.astype("float64").sum())
        count += found.size
    loss = total / count
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return {"loss": loss, "num_tokens": count, "perplexity": perplexity}
