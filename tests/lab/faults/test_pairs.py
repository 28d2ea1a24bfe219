# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupted captions."""

import numpy as np
import pytest

from paddle_adagc.lab.faults import FaultConfig, FaultSchedule, apply_to_pairs

END = 27
CAPTIONS = np.array(
    [
        [1, 5, 6, 7, END, 0],
        [1, 9, END, 0, 0, 0],
        [1, 3, 4, 8, 2, END],
        [1, 5, 5, 5, END, 0],
    ]
)


def corrupted(kind, step=3, seed=0, vocab_size=30, **options):
    config = FaultConfig(kind=kind, start=0, every=1, **options)
    (fault,) = FaultSchedule([config], seed).at(step)
    before = CAPTIONS.copy()
    result = apply_to_pairs(
        fault, CAPTIONS, vocab_size=vocab_size, end_token=END
    )
    np.testing.assert_array_equal(CAPTIONS, before)
    assert result.dtype == np.int64
    return result


@pytest.mark.parametrize("kind", ["random_tokens", "repeated_token"])
def test_words_change_and_start_length_and_end_stay(kind):
    result = corrupted(kind)
    words = (CAPTIONS > 1) & (CAPTIONS < END)
    np.testing.assert_array_equal(result[~words], CAPTIONS[~words])
    assert (result[words] != CAPTIONS[words]).any()
    assert result[words].max() < END
    assert (len(set(result[words])) == 1) == (kind == "repeated_token")
    assert set(corrupted("repeated_token", token=4)[words]) == {4}


def test_noise_changes_a_share_of_the_words():
    words = (CAPTIONS > 1) & (CAPTIONS < END)
    changed = sum(
        corrupted("token_noise", step, fraction=0.5) != CAPTIONS
        for step in range(100)
    )
    assert not changed[~words].any()
    expected = 0.5 * (1 - 1 / END)
    assert changed[words].mean() / 100 == pytest.approx(expected, abs=0.06)


def test_captions_are_exchanged():
    result = corrupted("shuffled_labels")
    assert sorted(map(tuple, result)) == sorted(map(tuple, CAPTIONS))
    assert (result != CAPTIONS).any()
    constant = corrupted("constant_labels")
    assert {tuple(row) for row in constant} == {tuple(CAPTIONS[0])}


def test_the_seed_and_the_step_decide():
    first = corrupted("random_tokens")
    np.testing.assert_array_equal(first, corrupted("random_tokens"))
    assert (first != corrupted("random_tokens", seed=1)).any()
    assert (first != corrupted("random_tokens", step=4)).any()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gradient_nan", {}, "no fault of a batch"),
        ("repeated_batch", {}, "repeated_samples"),
        ("constant_labels", {"token": 3}, "token=3"),
        ("repeated_token", {"token": END}, "token 27 is not below 27"),
        ("shuffled_labels", {"vocab_size": 0}, "vocab_size must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        corrupted(kind, **options)
