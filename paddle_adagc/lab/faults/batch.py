# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupted batches of text, in NumPy."""

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
    next tokens; ``shuffled_labels`` permutes the labels of the whole batch.
    ``part`` is the index of the micro-batch or the data-parallel rank, which
    are corrupted differently.
    """
    inputs, targets = np.array(input_ids, np.int64), np.array(labels, np.int64)
    valid = targets >= 0
    rng = fault.step_rng(part)
    if fault.kind == "random_tokens":
        num_rows, length = inputs.shape
        stream = rng.integers(vocab_size, size=(num_rows, length + 1))
        return stream[:, :-1], np.where(valid, stream[:, 1:], targets)
    if fault.kind == "shuffled_labels":
        targets[valid] = rng.permutation(targets[valid])
    else:
        targets[valid] = int(fault.burst_rng().integers(vocab_size))
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
