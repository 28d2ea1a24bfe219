# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupted batches."""

import numpy as np
import pytest

from paddle_adagc.lab.faults import (
    FaultConfig,
    FaultSchedule,
    apply_to_batch,
    repeated_samples,
)

VOCAB = 256


def make_fault(kind, step=3, seed=5):
    config = FaultConfig(kind=kind, start=3, duration=4)
    return FaultSchedule([config], seed=seed).at(step)[0]


def make_batch(num_rows=8, length=16):
    stream = np.random.default_rng(0).integers(0, VOCAB, (num_rows, length + 1))
    return stream[:, :-1].copy(), stream[:, 1:].copy()


def corrupt(kind, batch, part=0, **where):
    fault = make_fault(kind, **where)
    return apply_to_batch(fault, *batch, vocab_size=VOCAB, part=part)


@pytest.mark.parametrize(
    "kind", ["random_tokens", "shuffled_labels", "constant_labels"]
)
def test_kinds_are_reproducible_and_leave_input_and_ignored_places(kind):
    batch = [array.astype(np.int32) for array in make_batch()]
    ignored = np.random.default_rng(1).random(batch[1].shape) < 0.3
    batch[1][ignored] = -100
    kept = [array.copy() for array in batch]
    first, second = corrupt(kind, batch), corrupt(kind, batch)
    for one, two, clean, before in zip(first, second, batch, kept, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(clean, before)
        assert one.dtype == np.int64
        assert one.shape == clean.shape
        assert one.max() < VOCAB
        assert not np.shares_memory(one, clean)
    inputs, labels = first
    np.testing.assert_array_equal(labels < 0, ignored)
    assert (inputs >= 0).all()
    assert not np.array_equal(labels, batch[1])


def test_random_tokens_are_a_stream_of_their_own_with_next_token_labels():
    inputs, labels = corrupt("random_tokens", make_batch(32, 64))
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    assert (np.bincount(inputs.ravel(), minlength=VOCAB) > 0).sum() > 200
    others = ({}, {"step": 4}, {"seed": 6}, {"part": 1})
    drawn = [corrupt("random_tokens", make_batch(), **way) for way in others]
    assert len({inputs.tobytes() for inputs, _ in drawn}) == 4


def test_repeated_batch_is_that_of_the_burst_s_first_step():
    for step in (3, 6):
        fault = make_fault("repeated_batch", step=step)
        assert fault.target == "batch"
        assert repeated_samples(fault, 4) == range(12, 16)
        assert repeated_samples(fault, 4, 2, 1) == range(28, 32)


def test_other_labels_keep_the_inputs():
    batch = make_batch()
    constant = [
        corrupt("constant_labels", batch, step=s)[1] for s in range(3, 7)
    ]
    assert np.unique(constant).size == 1
    inputs, labels = corrupt("shuffled_labels", batch)
    np.testing.assert_array_equal(inputs, batch[0])
    np.testing.assert_array_equal(
        np.sort(labels, axis=None), np.sort(batch[1], axis=None)
    )
    assert (np.sort(labels) != np.sort(batch[1])).any()  # over rows, too
    assert (labels != batch[1]).mean() > 0.9
