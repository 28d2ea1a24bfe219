# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rank gives to the first one, which joins the parts of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.paddle_internals import unchecked
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.watch.measure import Steps
from paddle_adagc.watch.store import QUANTITIES


def is_split(clip: ClipGradByAdaGC | None) -> bool:
    """Whether other ranks may have tensors that this one has not."""
    return clip is not None and clip._progress.reducer().communicates


def own_part(mine: Steps, clip: ClipGradByAdaGC | None) -> Steps:
    """Return the tensors that this rank counts; together each is once."""
    if clip is None or not mine.keys:
        return mine
    ones = paddle.ones([len(mine.keys)], "float32")
    counts = clip._progress.reducer().counted(ones).numpy() != 0
    if dist.get_rank() and not is_split(clip):
        counts = counts & False  # the first rank has the same
    return dataclasses.replace(
        mine,
        keys=[
            k for k, is_mine in zip(mine.keys, counts, strict=True) if is_mine
        ],
        tensors={
            name: table[:, counts] for name, table in mine.tensors.items()
        },
    )


def join(parts: Sequence[Steps]) -> Steps:
    """Join the parts of all ranks.

    The loss is the mean over the ranks that know it. A tensor that several
    ranks count is that of the rank where its norm is not 0.

    Raises:
        RuntimeError: They count other steps.
    """
    if len(parts) == 1:
        return parts[0]
    numbers = [[row["step"] for row in part.rows] for part in parts]
    if any(mine != numbers[0] for mine in numbers):
        raise RuntimeError("the ranks have counted different steps")
    rows = []
    for same in zip(*(part.rows for part in parts), strict=True):
        losses = [row["loss"] for row in same if "loss" in row]
        mean = {"loss": sum(losses) / len(losses)} if losses else {}
        rows.append({**same[0], **mean})
    index: dict[str, int] = {}
    for key in (key for part in parts for key in part.keys):
        index.setdefault(key, len(index))
    shape = (len(rows), len(index))
    tensors = {name: np.full(shape, np.nan, np.float32) for name in QUANTITIES}
    for part in parts:
        places = np.array([index[key] for key in part.keys], np.int64)
        old = tensors["norm"][:, places]
        is_better = np.isnan(old) | (old == 0) & (part.tensors["norm"] != 0)
        for name, mine in part.tensors.items():
            table = tensors[name]
            table[:, places] = np.where(is_better, mine, table[:, places])
    small, every = np.sum([part.num_small for part in parts], 0).tolist()
    return Steps(rows, [*index], tensors, (small, every))


@unchecked
def count_small(optimizer: Any) -> tuple[int, int]:
    """Count elements whose second moment lets Adam's epsilon decide the step.

    Those with ``sqrt(v) < 10 epsilon``, v with its bias corrected; and all.
    An element that had no gradient so far, as that of a token that did not
    occur or of a buffer's padding, counts in neither. An optimizer without a
    second moment or epsilon has none. Waits for the device.
    """
    made = optimizer._accumulators.get("moment2", {})
    moments = [local_value(moment) for moment in made.values()]
    epsilon = getattr(optimizer, "_epsilon", None)
    if not moments or not isinstance(epsilon, float):
        return 0, 0
    powers = [*optimizer._accumulators.get("beta2_pow_acc", {}).values()]
    correction = 1 - powers[0].item() if powers else 1.0
    bound = (10 * epsilon) ** 2 * correction
    # 1e-16 == 0 in Paddle, but not <= 0.
    counts = [
        paddle.stack([(m < bound).sum(), (m <= 0).sum()]) for m in moments
    ]
    small, still = paddle.stack(counts).sum(0).tolist()
    return small - still, sum(moment.size for moment in moments) - still
