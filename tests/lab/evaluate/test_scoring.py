# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import paddle
import pytest
from adagc_lab.data.datasets import TokenDataset
from adagc_lab.evaluate.saved import build_decoder, load_saved
from adagc_lab.evaluate.scoring import Scorer, measure_perplexity
from scipy.special import log_softmax


@pytest.fixture(scope="module")
def model(runs):
    return build_decoder(load_saved(runs("ernie4_5_moe")))


def literal_logs(model, tokens):
    """Logarithms of probabilities, one list at a time, in float64."""
    logits = model(paddle.to_tensor([tokens])).numpy()[0]
    return log_softmax(logits.astype(np.float64), -1)


def literal_score(model, context, continuation):
    logs = literal_logs(model, [*context, *continuation][:-1])
    logs = logs[-len(continuation) :]
    total = logs[np.arange(len(continuation)), continuation].sum()
    return total, bool((logs.argmax(-1) == continuation).all())


def random_pairs(count, longest):
    draw = np.random.default_rng(3)
    return [
        tuple(
            draw.integers(0, 256, draw.integers(1, longest)).tolist()
            for _ in range(2)
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_are_those_of_one_list_at_a_time(model, batch_size):
    pairs = random_pairs(11, 14)
    pairs += [([5, 6], [7, end]) for end in range(4)]  # share a pass
    likeliest = int(literal_logs(model, [9, 8])[-1].argmax())
    pairs.append(([9, 8], [likeliest]))
    scores = Scorer(model, batch_size).score(pairs)
    expected = [literal_score(model, *pair) for pair in pairs]
    np.testing.assert_allclose(
        [score.log_likelihood for score in scores],
        [total for total, _ in expected],
        rtol=0,
        atol=2e-5,
    )
    assert [s.is_greedy for s in scores] == [greedy for _, greedy in expected]
    assert scores[-1].is_greedy
    assert not scores[0].is_greedy


def test_long_pairs_lose_their_context_from_the_left(model):
    context, continuation = random_pairs(1, 30)[0]
    scorer = Scorer(model)
    scorer.max_length = len(continuation) + 3
    scores = scorer.score([(context, continuation)])
    kept = context[-4:]  # the last token is predicted, not seen
    expected, _ = literal_score(model, kept, continuation)
    assert scores[0].log_likelihood == pytest.approx(expected, abs=2e-5)


def test_a_lost_model_has_no_score(model, runs):
    lost = build_decoder(load_saved(runs("llama")))
    lost.model.norm.weight.set_value(paddle.full([32], math.nan))
    score = Scorer(lost).score([([1], [2])])[0]
    assert math.isnan(score.log_likelihood)


def test_refuses_pairs(model):
    for pair, message in (
        (([], [1]), r"context \[\]"),
        (([1], []), r"continuation \[\]"),
        (([1], [2] * 65), "65 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            Scorer(model).score([pair])


def test_perplexity_is_the_mean_over_all_labels(model):
    tokens = np.random.default_rng(0).integers(0, 256, 200)
    starts = tuple(range(0, 170, 17))
    dataset = TokenDataset(tokens, starts, seq_length=17)
    found = measure_perplexity(model, dataset, batch_size=4)
    losses = []
    for start in dataset.order:
        logs = literal_logs(model, tokens[start : start + 17].tolist())
        labels = tokens[start + 1 : start + 18]
        losses += (-logs[np.arange(17), labels]).tolist()
    assert found["num_tokens"] == len(losses)
    assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    dataset = TokenDataset(np.arange(400), (0,), seq_length=8, vocab_size=400)
    with pytest.raises(ValueError, match="token 399"):
        measure_perplexity(model, dataset)
