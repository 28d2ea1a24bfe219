# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupted batches of image-text pairs."""

from __future__ import annotations

import numpy as np

from paddle_adagc.checks import check_integer
from paddle_adagc.lab.faults.batch import check_corrupts, hit_places
from paddle_adagc.lab.faults.checking import check_token
from paddle_adagc.lab.faults.schedule import Fault


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
    check_corrupts(fault)
    check_integer("vocab_size", vocab_size, 1)
    captions = np.array(input_ids, np.int64)
    kind, token = fault.kind, fault.config.token
    rng = fault.step_rng(0)
    if kind == "shuffled_labels":
        return captions[rng.permutation(len(captions))]
    if kind == "constant_labels":
        if token is not None:
            raise ValueError(
                f"constant_labels with token={token}: image-text pairs have "
                "captions as labels; leave it out"
            )
        return np.repeat(captions[:1], len(captions), axis=0)
    num_words = min(vocab_size, end_token)
    if token is not None:
        check_token(token, num_words)
    else:
        token = int(fault.burst_rng().integers(num_words))
    places = np.arange(captions.shape[1])
    end = (captions == end_token).argmax(axis=1)[:, None]
    words = (places > 0) & (places < end)
    if kind == "repeated_token":
        return np.where(words, token, captions)
    drawn = rng.integers(num_words, size=captions.shape)
    hit = hit_places(fault, rng, captions.shape)
    return np.where(words & hit, drawn, captions)
