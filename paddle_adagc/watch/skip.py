# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which steps are left out, before the optimizer makes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import _ShardOptimizer
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)

from paddle_adagc import rule
from paddle_adagc.checks import as_float, check_positive
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.guards import unchecked
from paddle_adagc.parallel.layout import unfold
from paddle_adagc.parallel.meshes import added_up, local_value
from paddle_adagc.stability.alarms import Monitor, Watch


class SkipRule:
    """Judge each step's global norm and loss by the 128 before it.

    They are a median and deviations from it (:class:`.Watch`), with skipped
    steps among them. So a second bad batch is skipped like the first, and a
    norm that stays high is the usual one after at most 128 steps.

    Args:
        sigma: Deviations above which a step is skipped, > 0.
        past: Earlier steps and their ``loss`` and ``global_grad_norm``.
    """

    def __init__(
        self, sigma: float, past: Iterable[tuple[int, Mapping[str, float]]] = ()
    ) -> None:
        watch = Watch(sigma=sigma)
        self._monitor = Monitor({"loss": watch, "global_grad_norm": watch})
        self._monitor.update(past)

    def skips(self, step: int, norm: float, loss: float | None) -> bool:
        """Take a step; return whether it is to be skipped.

        Args:
            step: Its index.
            norm: Global gradient norm, over all ranks.
            loss: Over all ranks; None: unknown.
        """
        values = {"global_grad_norm": norm}
        if loss is not None:
            values["loss"] = loss
        self._monitor.update([(step, values)])
        return any(alarm.end == step for alarm in self._monitor.alarms)


def mean_loss(loss: float | None) -> float | None:
    """Return the mean over the ranks that know a loss; all ranks call it."""
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return loss
    known = [loss or 0.0, float(loss is not None)]
    sums = paddle.to_tensor(known, "float64")
    dist.all_reduce(sums)
    total, count = sums.tolist()
    return total / count if count else None


def largest(flag: int) -> int:
    """Return the largest flag of any rank; all ranks call it."""
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return flag
    flags = paddle.to_tensor([flag])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return int(flags.item())


def check_skipping(
    sigma: float, optimizer: Any, source: Any, acting: Any
) -> None:
    """Refuse a bound, or an optimizer whose steps cannot be left out."""
    check_positive("skip_above", sigma)
    if isinstance(optimizer, paddle.optimizer.LBFGS):
        raise ValueError(
            "skip_above: a step of LBFGS has several updates and cannot be "
            "stopped: use another optimizer"
        )
    if source is None:
        raise ValueError(
            "skip_above needs the norms, and nothing measures them beside "
            f"{acting!r}: leave shadow=False out"
        )


def check_stepping(optimizer: Any) -> None:
    """Refuse an auto-parallel optimizer whose gradients cannot be seen."""
    is_inside = "_shard_fn" in vars(optimizer)  # of the wrapper
    if is_inside and not isinstance(optimizer, _ShardOptimizer):
        raise ValueError(
            f"shard_optimizer wraps this {type(optimizer).__name__}, and makes "
            "its steps: give Record the optimizer that it returned"
        )
    if getattr(optimizer, "enable_tensor_fusion", False):
        raise ValueError(
            "auto-parallel's tensor fusion adds up the gradients within the "
            "optimizer's step, where only its clip can measure them: leave "
            "skip_above out, and give the optimizer a clip of this package or "
            "Record shadow=False; or leave _enable_tensor_fusion() out"
        )


def measured(
    source: ClipGradByAdaGC | None,
    optimizer: Any,
    pairs: Any,
    losses: Sequence[Any],
) -> tuple[float, LastStep | None, float | None]:
    """Return a step's global norm, its numbers, and this rank's loss.

    There are no numbers of a step that a ``GradScaler`` skips.

    Args:
        source: The clip that measures the norms.
        optimizer: The one whose step it is, see :func:`.stepping`.
        pairs: Of its first group where it has several.
        losses: Of this rank's micro-batches so far.
    """
    if source is None:
        raise RuntimeError("skip_above: nothing measures norms any more")
    if isinstance(pairs, dict):
        pairs = gradients_of(optimizer)
    loss = sum(map(as_float, losses)) if losses else None
    norm, snapshot = measure(source, pairs)
    overflows = bool(optimizer._get_auxiliary_var("found_inf"))
    return norm, None if overflows else snapshot, loss


def gradients_of(optimizer: Any) -> list[tuple[Any, Any]]:
    """Return an optimizer's parameters with gradients, of all its groups."""
    pairs = []
    for group in optimizer._param_groups:
        for parameter in group["params"]:
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if not parameter.stop_gradient and gradient is not None:
                pairs.append((parameter, gradient))
    return pairs


def whole(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs with copies of gradients that a mesh holds as summands.

    So that a clip which only measures leaves them as they are.
    """
    if not get_unique_process_mesh_map():
        return pairs
    return [(p, g if g is None else added_up(g)) for p, g in pairs]


@unchecked
def measure(clip: ClipGradByAdaGC, pairs: Any) -> tuple[float, LastStep]:
    """Let a clip measure gradients without a step; waits for the device.

    Returns:
        The global norm over all ranks, Inf with any Inf or NaN; and the clip's
        numbers.
    """
    pairs = whole(pairs)
    snapshot = clip._measure(pairs)
    others = _num_nonfinite_left_out(clip, pairs)
    if not snapshot.calls:  # no gradient to clip here
        return math.inf if others else 0.0, snapshot
    reducer, norm = clip._progress.reducer(), snapshot.calls[-1].norm
    counted = reducer.counted(norm)
    nonfinite = (~paddle.isfinite(counted)).astype("float64").sum(keepdim=True)
    nonfinite += others
    sums = paddle.concat([rule.global_squared_norm(counted), nonfinite])
    squared, num_nonfinite = reducer.global_sum(sums).tolist()
    return math.inf if num_nonfinite else math.sqrt(squared), snapshot


def _num_nonfinite_left_out(clip: ClipGradByAdaGC, pairs: Any) -> int:
    """Count this rank's gradients with Inf or NaN that are not clipped."""
    leaves_out = clip.overrides.exempts
    present = [(p, gradient) for p, gradient in pairs if gradient is not None]
    if clip._progress.ranks.in_buffers:
        present = unfold(present, clip._progress.ranks.in_buffers)
    found = [
        local_value(gradient)
        for parameter, gradient in present
        if getattr(parameter, "need_clip", True) is False
        or (
            leaves_out
            and all(map(leaves_out, clip._progress.tensors.keys_of(parameter)))
        )
    ]
    if not found:
        return 0
    return int((~paddle.isfinite(GradientList(found).squared_norms())).sum())
