# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One call of the clip: find the gradients, measure, decide, scale, commit.

An optimizer calls its clip once per parameter group. Vectors have an entry for
each tensor known so far, of the whole tensors, whichever parts of them this
rank holds. Nothing here waits for the device, with these exceptions: the first
step of a distributed run, the one that compares the ranks' norms, the second
one after the warm-up, and ``nonfinite="raise"``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.clips.gradients import (
    GradientList,
    refuse_nonfinite,
    treat_nonfinite,
)
from paddle_adagc.clips.last_step import Call
from paddle_adagc.clips.lookup import Pairs, find
from paddle_adagc.clips.memory import Memory
from paddle_adagc.clips.progress import Progress
from paddle_adagc.clips.settings import Settings, grows_faster, votes
from paddle_adagc.kernels.cuda import adaptive_step
from paddle_adagc.paddle_internals import (
    Caller,
    find_caller,
    has_moments,
    on_skipped_update,
    take_back_skipped,
    unchecked,
)
from paddle_adagc.parallel.agreement import settings_of
from paddle_adagc.parallel.reduce import Reducer


def clip_pairs(
    settings: Settings,
    progress: Progress,
    pairs: Pairs,
    group: Any = None,
    follows: bool = False,
) -> Pairs:
    """Clip the gradients of one call in place, and return the pairs.

    1. Find the gradients; measure each, and sum its squared norm over the ranks
       that hold parts of the tensor.
    2. Decide, by Algorithm 1, about factors ``h`` and the next memory.
    3. Multiply every gradient by its ``h``; treat non-finite ones.
    4. Commit count and memory: a step happens, or it does not. If the optimizer
       then makes no update, take them back.

    Args:
        settings: The clip's arguments.
        progress: What the clip knows so far.
        pairs: Parameters, and gradients or None.
        group: Ranks that share auto-parallel's buffers, if there are some.
        follows: Leave the gradients as they are: another clip acts.
    """
    progress.num_calls += 1
    tensors, ranks = progress.tensors, progress.ranks
    found = find(pairs, tensors, ranks, settings.overrides.exempts, group)
    if found is None:
        return pairs
    reducer = ranks.reducer or progress.reducer()
    if not ranks.has_agreed:
        ranks.agree_once(settings_of(progress.state()))
    caller = find_caller()
    if caller is not None:
        take_back_skipped(caller, progress.take_back)
    before = progress.steps
    counts = bool(found.pairs) or reducer.communicates
    steps = before.after(found.indexes, caller, counts)
    if not counts:
        progress.steps = steps
        return pairs
    begins = steps.num_steps > before.num_steps
    memory = progress.memory.grown(len(tensors.keys))
    index = steps.num_steps - 1 - memory.start
    # Unbound, it knows the tensors of all groups after a step.
    knows_all = tensors.is_bound or (begins and progress.calls)
    if settings.overrides.awaits_tensors and knows_all:
        settings.overrides.refuse_unused(tensors.keys, reducer.any_rank)
    before.warn_if_mixed(steps, progress.owner)
    if begins and not follows:
        _warn_of_a_missing_state(progress, caller)
    if begins and not follows and index == settings.t_start + 1:
        _warn_of_low_gammas(settings, progress)

    squared_norm = measure(found.gradients, reducer)
    is_due = index + memory.start >= max(settings.t_start, 1) and not follows
    if is_due and not ranks.has_compared:
        ranks.compare_once(tensors.keys, tensors.layout, squared_norm)
    done = decide(
        settings,
        squared_norm,
        memory,
        tensors.keys,
        reducer,
        index,
        found.gradients.is_on_gpu,
    )
    if not follows:
        found.gradients.scale_(done.h, done.discard)

    call = Call(found.present, done.norm, done.h)
    after = Memory(done.gamma, done.support, done.num_nonfinite, memory.start)
    progress.commit(call, steps, after)
    if caller is not None:
        on_skipped_update(caller, progress.take_back)
    return pairs


class Decision(NamedTuple):
    """What becomes of the gradients of one call, and of the memory."""

    norm: Tensor  # float32 [num_tensors], before the clip
    h: Tensor  # float32 [num_tensors], factor of each gradient, from 0 to 1
    gamma: Tensor  # float32 [num_tensors], after the call
    support: Tensor | None = None  # float32 [num_tensors]; None: not counted
    discard: Tensor | None = None  # bool [num_tensors]: gradients that become 0
    num_nonfinite: Tensor | None = None  # int32 [num_tensors], after the call


@unchecked
def measure(gradients: GradientList, reducer: Reducer) -> Tensor:
    """Squared norms of whole tensors, float32 ``[num_tensors]``.

    0 without a gradient; Inf or NaN where the gradient holds one. A tensor's
    parts on other ranks are added.
    """
    return reducer.local_norms(gradients.squared_norms())


@unchecked
def decide(
    settings: Settings,
    squared_norm: Tensor,
    memory: Memory,
    keys: Sequence[str],
    reducer: Reducer,
    index: int,
    is_on_gpu: bool = False,
) -> Decision:
    """Apply Algorithm 1 to the norms of one call; change nothing.

    Args:
        settings: The clip's arguments.
        squared_norm: float32 ``[num_tensors]``, from :func:`measure`.
        memory: What the clip remembers of each tensor.
        keys: Names of the tensors.
        reducer: Sums over ranks.
        index: Counts steps from 0, or from ``restart_warmup()``.
        is_on_gpu: The CUDA kernels have some of the gradients.

    Raises:
        FloatingPointError: A norm is not finite, and ``nonfinite="raise"``.
    """
    if is_on_gpu and index >= settings.t_start:
        done = _by_kernel(settings, squared_norm, memory, index)
        if done is not None:
            return done
    norm = rule.square_root(squared_norm)
    if settings.nonfinite == "raise":
        refuse_nonfinite(norm, keys, memory.start + index, reducer)
    if index < settings.t_start:
        decision = _warm_up(settings, norm, memory, reducer)
    else:
        decision = _adapt(settings, norm, memory.gamma, keys, index)
    h, discard, counts = treat_nonfinite(
        settings.nonfinite, decision.h, norm, memory.num_nonfinite
    )
    return decision._replace(h=h, discard=discard, num_nonfinite=counts)


def _warm_up(
    settings: Settings, norm: Tensor, memory: Memory, reducer: Reducer
) -> Decision:
    """Apply lines 6 to 9: GlobalGC, and how gamma starts.

    In a hybrid-parallel run: one all-reduce of 3 numbers.
    """
    gamma, support = memory.gamma, memory.support
    if support is None and votes(settings):  # t_start was raised after it
        support = paddle.full_like(gamma, rule.FULL_SUPPORT)
    counted = reducer.counted(norm)
    squared_norm = rule.global_squared_norm(counted)
    sums = [squared_norm, *rule.log_change(counted, gamma)]
    sums = reducer.global_sum(paddle.concat(sums)).split(3)
    squared_norm, change, count = sums
    global_norm = squared_norm.sqrt().astype("float32")
    h = rule.global_scale(global_norm, settings.lambda_abs)
    if settings.init == "warmup_ema":
        mean = rule.mean_change(change, count, paddle.ones_like(h))
        gamma, support = rule.supported_average(
            norm, gamma, support, mean, rule.warmup_beta(settings.t_start)
        )
    elif support is not None:
        mean = rule.mean_change(change, count, h)
        gamma, support = rule.supported_minimum(h * norm, gamma, support, mean)
    else:
        gamma = rule.running_minimum(h * norm, gamma)
    return Decision(norm, h.expand_as(norm), gamma, support)


def _adapt(
    settings: Settings,
    norm: Tensor,
    gamma: Tensor,
    keys: Sequence[str],
    index: int,
) -> Decision:
    """Apply lines 13 and 15: ``h`` of each tensor, and gamma's average."""
    lambda_rel: rule.PerTensor = settings.lambda_rel
    beta: rule.PerTensor = settings.beta
    if settings.overrides.names:
        defaults = {"lambda_rel": settings.lambda_rel, "beta": settings.beta}
        vectors = settings.overrides.vectors(keys, defaults)
        lambda_rel = vectors.get("lambda_rel", lambda_rel)
        beta = vectors.get("beta", beta)
    h = rule.adaptive_scale(norm, gamma, lambda_rel)
    if grows_faster(settings, index):
        bound = rule.growth_bound(index, settings.t_start, lambda_rel)
        return Decision(norm, h, rule.bounded_average(norm, gamma, beta, bound))
    return Decision(norm, h, rule.moving_average(h * norm, gamma, beta))


def _by_kernel(
    settings: Settings, squared_norm: Tensor, memory: Memory, index: int
) -> Decision | None:
    """Apply :func:`_adapt` by one kernel, if all tensors share the arguments.

    None where the kernel cannot do it.
    """
    if (
        settings.overrides.names
        or settings.nonfinite == "raise"
        or grows_faster(settings, index)
    ):
        return None
    done = adaptive_step(
        squared_norm,
        memory.gamma,
        memory.num_nonfinite,
        lambda_rel=settings.lambda_rel,
        beta=settings.beta,
        zeroes_nonfinite=settings.nonfinite == "zero",
    )
    if done is None:
        return None
    rest = done.discard, done.num_nonfinite
    return Decision(done.norm, done.h, done.gamma, None, *rest)


def _warn_of_a_missing_state(progress: Progress, caller: Caller | None) -> None:
    """Warn if the run was resumed, and this clip was not.

    Of another group than the first the optimizer may have made moments in this
    very step.
    """
    if progress.steps.num_steps or progress.is_started_anew:
        return
    if caller is None or caller.group or not has_moments(caller.optimizer):
        return
    warnings.warn(
        f"this {progress.owner} makes its first step, and its optimizer has "
        "made some: in a resumed run load the clip's state, too "
        "(clip.set_state_dict), or it starts anew. If that is what you want, "
        "clip.restart_warmup() says so",
        stacklevel=8,
    )


def _warn_of_low_gammas(settings: Settings, progress: Progress) -> None:
    """Warn of tensors whose norm is far above the warm-up's smallest.

    Looks at the first step after the warm-up, whose parameter groups have all
    been here; on each rank for itself. Waits for the device, this once.
    """
    if settings.init != "warmup_min" or not settings.t_start:
        return
    rows = progress.snapshot().rows()
    norm, gamma, h = (rows.columns[x] for x in ("norm", "gamma", "h"))
    low = rows.choose(np.isfinite(norm) & (10 * gamma < norm) & (h < 1))
    if not low.keys:
        return
    names = ", ".join(low.keys[:3]) + ", ..." * (len(low.keys) > 3)
    h = low.columns["h"]
    growth = max((1 - settings.beta) * (settings.lambda_rel - 1), 0)
    warnings.warn(
        f"{len(low.keys)} of {len(rows.keys)} tensors ({names}) leave the "
        "warm-up with gamma below a tenth of their norm: step "
        f"{progress.steps.num_steps} multiplied their gradients by h of "
        f"{h.min():.2g} to {h.max():.2g}, and gamma grows by at most "
        f"{growth:.2%} a step. gamma is the smallest norm of the warm-up; "
        'init="warmup_ema" starts it where the norms are',
        stacklevel=8,
    )
