# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupted batches, of text and of image-text pairs, in NumPy."""

from __future__ import annotations

import numpy as np

from paddle_adagc.lab.faults.config import Fault

REPEATED_BATCH = "repeated_batch"


def apply_to_batch(
    fault: Fault,
    input_ids: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    part: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupt a batch of next-token prediction, int64 ``[batch, seq]``.

    ``labels[:, t]`` is the token after ``input_ids[:, t]``; negative labels are
    ignored positions and stay as they are. ``random_tokens`` draws one stream a
    row, from which inputs and labels are cut, so that the labels are still the
    next tokens; ``token_noise`` replaces a fraction of the row's tokens by
    such, in inputs and labels alike; ``shuffled_labels`` permutes the labels of
    the whole batch. ``part`` is the index of the micro-batch or the
    data-parallel rank, which are corrupted differently.
    """
    inputs, targets = np.array(input_ids, np.int64), np.array(labels, np.int64)
    valid = targets >= 0
    rng = fault.step_rng(part)
    if fault.kind in ("random_tokens", "token_noise"):
        num_rows, length = inputs.shape
        stream = rng.integers(vocab_size, size=(num_rows, length + 1))
        hit = hit_places(fault, rng, stream.shape)
        return (
            np.where(hit[:, :-1], stream[:, :-1], inputs),
            np.where(valid & hit[:, 1:], stream[:, 1:], targets),
        )
    if fault.kind == "shuffled_labels":
        targets[valid] = rng.permutation(targets[valid])
        return inputs, targets
    targets[valid] = token = int(fault.burst_rng().integers(vocab_size))
    if fault.kind == "repeated_token":
        inputs[...] = token
    return inputs, targets


def repeated_samples(
    fault: Fault, batch_size: int, num_parts: int = 1, part: int = 0
) -> range:
    """Return the samples that ``repeated_batch`` repeats.

    They are those, in the order of training from 0, of the same micro-batch
    (``part`` of ``num_parts``, each of ``batch_size``) in the burst's first
    step.
    """
    start = (fault.burst * num_parts + part) * batch_size
    return range(start, start + batch_size)


def hit_places(
    fault: Fault, rng: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray:
    """Choose the places of a batch that get a random token."""
    if fault.config.fraction is None:
        return np.ones(shape, dtype=bool)
    return rng.random(shape) < fault.config.fraction


def apply_to_pairs(
    fault: Fault,
    input_ids: np.ndarray,
    *,
    vocab_size: int,
    end_token: int,
) -> np.ndarray:
    """Corrupt the captions of a batch, int64 ``[batch, length]``.

    ``random_tokens`` draws the words anew, ``token_noise`` a fraction of them,
    ``repeated_token`` makes all of them one token, ``shuffled_labels`` gives
    images each other's captions, ``constant_labels`` gives all of them the
    first one's caption. The first token of a caption, its length and its end
    stay; ``end_token`` and those above it are not drawn.
    """
    captions = np.array(input_ids, np.int64)
    rng = fault.step_rng(0)
    if fault.kind == "shuffled_labels":
        return captions[rng.permutation(len(captions))]
    if fault.kind == "constant_labels":
        return np.repeat(captions[:1], len(captions), axis=0)
    num_words = min(vocab_size, end_token)
    places = np.arange(captions.shape[1])
    end = (captions == end_token).argmax(axis=1)[:, None]
    words = (places > 0) & (places < end)
    if fault.kind == "repeated_token":
        token = int(fault.burst_rng().integers(num_words))
        return np.where(words, token, captions)
    drawn = rng.integers(num_words, size=captions.shape)
    hit = hit_places(fault, rng, captions.shape)
    return np.where(words & hit, drawn, captions)
