# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Corrupted batches, in NumPy."""

from __future__ import annotations

import numpy as np

from paddle_adagc.checks import check_integer
from paddle_adagc.stability.faults.schedule import Fault


def apply_to_batch(
    fault: Fault,
    input_ids: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    part: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Corrupt a batch of next-token prediction.

    ``labels[:, t]`` is the token after ``input_ids[:, t]``; negative labels
    are ignored positions and stay as they are. ``random_tokens`` draws one
    stream a row, from which inputs and labels are cut, so that the labels are
    still the next tokens; ``shuffled_labels`` permutes the labels of the whole
    batch.

    Args:
        fault: Of a batch kind.
        input_ids: Integers ``[batch, seq]``; not changed.
        labels: Integers ``[batch, seq]``; not changed.
        vocab_size: Number of token ids to draw from.
        part: Index of the micro-batch or the data-parallel rank, so that the
            parts of one step are corrupted differently.

    Returns:
        New input ids and labels, int64 ``[batch, seq]``.

    Raises:
        TypeError: The arrays are not integers.
        ValueError: The fault is not one of a batch, the shapes are wrong, or
            the fault's token is not below ``vocab_size``.
    """
    if fault.target != "batch":
        raise ValueError(f"{fault.kind} is no fault of a batch")
    check_integer("vocab_size", vocab_size, 1)
    token = fault.config.token
    if token is not None and token >= vocab_size:
        raise ValueError(f"token {token} is not below vocab_size {vocab_size}")
    if token is None:
        token = int(fault.burst_rng().integers(vocab_size))
    inputs = _check_tokens("input_ids", input_ids)
    targets = _check_tokens("labels", labels)
    if inputs.shape != targets.shape:
        raise ValueError(
            f"input_ids {inputs.shape} and labels {targets.shape} must have "
            "the same shape"
        )
    valid = targets >= 0
    rng = fault.step_rng(part)
    if fault.kind == "random_tokens":
        num_rows, length = inputs.shape
        stream = rng.integers(vocab_size, size=(num_rows, length + 1))
        return stream[:, :-1].copy(), np.where(valid, stream[:, 1:], targets)
    if fault.kind == "shuffled_labels":
        targets[valid] = rng.permutation(targets[valid])
        return inputs, targets
    targets[valid] = token
    if fault.kind == "repeated_token":
        inputs[...] = token
    return inputs, targets


def _check_tokens(name: str, tokens: np.ndarray) -> np.ndarray:
    """A copy as int64 ``[batch, seq]``."""
    array = np.asarray(tokens)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    if array.ndim != 2:
        raise ValueError(f"{name} must be [batch, seq], got {array.shape}")
    return array.astype(np.int64)
