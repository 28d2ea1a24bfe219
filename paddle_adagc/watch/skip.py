# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which steps are left out, before the optimizer makes them."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist

from paddle_adagc import rule
from paddle_adagc.checks import check_positive
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.clips.last_step import Call, LastStep
from paddle_adagc.clips.step import find_gradients
from paddle_adagc.paddle_internals import eager
from paddle_adagc.parallel.layout import unfold
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.watch.clips import Clips
from paddle_adagc.watch.losses import as_float
from paddle_adagc.watch.reading import RecordedRun

logger = logging.getLogger(__name__)

MOST_IN_A_ROW = 16
"""Steps that are left out in a row before one is made."""

_WINDOW, _FIRST_JUDGED = 128, 64
JUDGED = ("loss", "global_grad_norm")
"""By which steps are skipped."""

_CONSISTENCY = 1.4826  # standard deviation of a normal distribution over MAD


class SkipRule:
    """Judge each step's global norm and loss by the 128 before it.

    They are a median and deviations from it, with skipped steps among them. So
    a second bad batch is skipped like the first, and a norm that stays high is
    the usual one after at most 128 steps.

    Args:
        sigma: Deviations above which a step is skipped, > 0.
    """

    def __init__(self, sigma: float) -> None:
        self._sigma = sigma
        self._past: dict[str, deque[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Take a step's numbers; those of :data:`JUDGED` are usual later."""
        for name in JUDGED:
            value = values.get(name, math.nan)
            if math.isfinite(value):
                last = self._past.setdefault(name, deque(maxlen=_WINDOW))
                last.append(value)

    def reason(self, norm: float, loss: float | None) -> str:
        """Take a step of all ranks; say why it is to be skipped, or nothing."""
        values = {"global_grad_norm": norm}
        if loss is not None:
            values["loss"] = loss
        reasons = []
        for name, value in values.items():
            past = np.array(self._past.get(name, ()))
            if not math.isfinite(value):
                reasons.append(f"{name} {value}")
            elif len(past) >= _FIRST_JUDGED:
                median = float(np.median(past))
                distance = np.abs(past - median)
                spread = _CONSISTENCY * float(np.median(distance))
                spread = spread or math.sqrt(math.pi / 2) * distance.mean()
                if value - median > self._sigma * spread:
                    reasons.append(f"{name} {value:.4g} (usual {median:.4g})")
        self.add(values)
        return ", ".join(reasons)


class Skipper:
    """Decides on all ranks together which steps are left out.

    An error on one rank is told to the others within the step: the failed one
    takes part with gradients of 0. The exception is an error between two
    exchanges of :func:`measure`, which sums the tensors' norms group by group.

    Raises:
        TypeError, ValueError: A wrong bound, or an optimizer whose steps cannot
            be left out.
    """

    FAILED = 2
    """Instead of 0 or 1: the record of a rank has failed."""

    def __init__(self, sigma: float, clips: Clips) -> None:
        check_positive("skip_above", sigma)
        if isinstance(clips.optimizer, paddle.optimizer.LBFGS):
            raise ValueError(
                "skip_above: a step of LBFGS has several updates and cannot be "
                "stopped: use another optimizer"
            )
        if clips.source is None:
            raise ValueError(
                "skip_above needs the norms, and nothing measures them beside "
                f"{clips.acting!r}: leave shadow=False out"
            )
        self._clips = clips
        self.rule = SkipRule(sigma)
        self.reason = ""
        self.num_skipped = self.num_in_a_row = 0

    def measured(
        self, pairs: Any, losses: Sequence[Any]
    ) -> tuple[float, LastStep | None, float | None]:
        """Return a step's global norm, its numbers, and this rank's loss.

        There are no numbers of a step that a ``GradScaler`` skips. ``pairs``
        are those of all groups, with whole gradients.
        """
        optimizer = self._clips.optimizer
        loss = sum(map(as_float, losses)) if losses else None
        overflows = bool(optimizer._get_auxiliary_var("found_inf"))
        norm, snapshot = measure(self._clips.source, pairs)
        return norm, None if overflows else snapshot, loss

    def take_part(self) -> None:
        """Let the other ranks measure, of whom this one has failed."""
        measure(self._clips.source, [])

    def flag(self, norm: float, loss: float | None) -> int:
        """Return whether to skip a step; not after 16 in a row."""
        self.reason = self.rule.reason(norm, loss)
        if self.reason and self.num_in_a_row >= MOST_IN_A_ROW:
            logger.warning(
                "skip_above: %d steps in a row were left out; the next is made "
                "although it has %s",
                MOST_IN_A_ROW,
                self.reason,
            )
            return 0
        return int(bool(self.reason))

    def count(self, is_skipped: bool) -> None:
        """Count a step that all ranks leave out, or make."""
        self.num_in_a_row = self.num_in_a_row + 1 if is_skipped else 0
        self.num_skipped += is_skipped


def history(past: RecordedRun | None, start: int) -> list[dict[str, Any]]:
    """Return the judged numbers of the last steps before ``start``."""
    rows = past.rows if past else []
    # With Inf or NaN the norm is that of the finite tensors.
    rows = [r for r in rows if r["step"] <= start and not r.get("nonfinite")]
    return [
        {name: row[name] for name in JUDGED if name in row}
        for row in rows[-_WINDOW:]
    ]


def mean_loss(loss: float | None) -> float | None:
    """Return the mean over the ranks that know a loss; all ranks call it."""
    known = [loss or 0.0, float(loss is not None)]
    total, count = _reduced(known, dist.ReduceOp.SUM)
    return total / count if count else None


def largest(flag: int) -> int:
    """Return the largest flag of any rank; all ranks call it."""
    return int(*_reduced([float(flag)], dist.ReduceOp.MAX))


def _reduced(values: list[float], operation: int) -> list[float]:
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return values
    tensor = paddle.to_tensor(values, "float64")
    dist.all_reduce(tensor, operation)
    found: list[float] = tensor.tolist()
    return found


@eager
@paddle.no_grad()
def measure(clip: Any, pairs: Sequence[Any]) -> tuple[float, LastStep]:
    """Let a clip measure gradients without a step; waits for the device.

    Returns:
        The global norm over all ranks, Inf with any Inf or NaN; and the clip's
        numbers.
    """
    others = _num_nonfinite_left_out(clip, pairs)
    found, progress = find_gradients(clip, [*pairs]), clip._progress
    reducer, keys = progress.reducer(), [*progress.tensors.keys]
    if found is None or not (found.indexes or reducer.communicates):
        return math.inf if others else 0.0, LastStep([], keys, {})
    squared_norm = reducer.whole_norms(found.gradients.squared_norms())
    norm = rule.square_root(squared_norm)
    call = Call(found.present, norm, paddle.ones_like(norm))
    counted = reducer.counted(norm)
    nonfinite = (~paddle.isfinite(counted)).astype("float64").sum(keepdim=True)
    nonfinite += others
    sums = paddle.concat([rule.global_squared_norm(counted), nonfinite])
    squared, num_nonfinite = reducer.global_sum(sums).tolist()
    norm_of_all = math.inf if num_nonfinite else math.sqrt(squared)
    return norm_of_all, LastStep([call], keys, {})


def _num_nonfinite_left_out(clip: ClipGradByAdaGC, pairs: Any) -> int:
    """Count this rank's gradients with Inf or NaN that are not clipped."""
    exempts, tensors = clip.overrides.exempts, clip._progress.tensors
    present = [(p, gradient) for p, gradient in pairs if gradient is not None]
    if clip._progress.ranks.in_buffers:
        present = unfold(present, clip._progress.ranks.in_buffers)
    found = [
        local_value(gradient)
        for parameter, gradient in present
        if getattr(parameter, "need_clip", True) is False
        or (exempts and all(map(exempts, tensors.keys_of(parameter))))
    ]
    if not found:
        return 0
    return int((~paddle.isfinite(GradientList(found).squared_norms())).sum())
