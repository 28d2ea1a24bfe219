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
KINDS = ["random_tokens", "shuffled_labels", "constant_labels"]


def make_fault(kind, step=3, seed=5, **options):
    config = FaultConfig(kind=kind, start=3, duration=4, **options)
    return FaultSchedule([config], seed=seed).at(step)[0]


def make_batch(num_rows=8, length=16):
    stream = np.random.default_rng(0).integers(0, VOCAB, (num_rows, length + 1))
    return stream[:, :-1].copy(), stream[:, 1:].copy()


def corrupt(fault, batch, **options):
    return apply_to_batch(fault, *batch, vocab_size=VOCAB, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_reproducible_and_leaves_its_input(kind):
    batch = [array.astype(np.int32) for array in make_batch()]
    kept = [array.copy() for array in batch]
    first = corrupt(make_fault(kind), batch)
    second = corrupt(make_fault(kind), batch)
    for one, two, clean, before in zip(first, second, batch, kept, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(clean, before)
        assert one.dtype == np.int64
        assert one.shape == clean.shape
        assert one.min() >= 0
        assert one.max() < VOCAB
        assert not np.shares_memory(one, clean)
    assert not np.array_equal(first[1], batch[1])


def test_random_tokens_are_a_stream_with_next_token_labels():
    inputs, labels = corrupt(make_fault("random_tokens"), make_batch(32, 64))
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    counts = np.bincount(inputs.ravel(), minlength=VOCAB)
    assert (counts > 0).sum() > 200


def test_random_tokens_differ_by_step_part_and_seed():
    batch = make_batch()
    drawn = [
        corrupt(make_fault("random_tokens"), batch),
        corrupt(make_fault("random_tokens", step=4), batch),
        corrupt(make_fault("random_tokens", seed=6), batch),
        corrupt(make_fault("random_tokens"), batch, part=1),
    ]
    assert len({inputs.tobytes() for inputs, _ in drawn}) == 4


def test_repeated_batch_is_that_of_the_burst_s_first_step():
    for step in (3, 6):
        fault = make_fault("repeated_batch", step=step)
        assert fault.target == "batch"
        assert repeated_samples(fault, 4) == range(12, 16)
        assert repeated_samples(fault, 4, 2, 1) == range(28, 32)


def test_constant_labels_keep_the_inputs_and_one_token_over_the_burst():
    batch = make_batch()
    labels_by_step = []
    for step in range(3, 7):
        inputs, labels = corrupt(make_fault("constant_labels", step), batch)
        np.testing.assert_array_equal(inputs, batch[0])
        labels_by_step.append(labels)
    assert np.unique(labels_by_step).size == 1


def test_shuffled_labels_permute_the_whole_batch():
    batch = make_batch()
    inputs, labels = corrupt(make_fault("shuffled_labels"), batch)
    np.testing.assert_array_equal(inputs, batch[0])
    np.testing.assert_array_equal(
        np.sort(labels, axis=None), np.sort(batch[1], axis=None)
    )
    assert (np.sort(labels) != np.sort(batch[1])).any()
    assert (labels != batch[1]).mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_ignored_positions_stay(kind):
    inputs, labels = make_batch()
    ignored = np.random.default_rng(1).random(labels.shape) < 0.3
    labels[ignored] = -100
    _, corrupted = corrupt(make_fault(kind), (inputs, labels))
    np.testing.assert_array_equal(corrupted == -100, ignored)
