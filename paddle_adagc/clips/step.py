# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One call of the clip: find the gradients, measure, decide, scale, commit.

An optimizer calls its clip once per parameter group. Vectors have an entry for
each tensor known so far, of the whole tensors, whichever parts of them this
rank holds. Nothing here waits for the device but the first step, the one that
compares the ranks' norms, the second after the warm-up, and those with
``nonfinite="raise"``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import paddle
from paddle import Tensor, _C_ops
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)

from paddle_adagc import rule
from paddle_adagc.clips.arguments import NonFinite
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.clips.last_step import Call
from paddle_adagc.clips.mistakes import (
    refuse_shared_memory,
    warn_of_a_missing_state,
    warn_of_low_gammas,
)
from paddle_adagc.clips.progress import Memory, Progress
from paddle_adagc.clips.step_count import StepCount
from paddle_adagc.clips.tensors import look_up
from paddle_adagc.kernels.cuda import adaptive_step
from paddle_adagc.paddle_internals import Caller, expect_update, find_caller
from paddle_adagc.parallel.agreement import refuse_nonfinite, settings_of
from paddle_adagc.parallel.reduce import Reducer

if TYPE_CHECKING:
    from paddle_adagc.clips.adagc import ClipGradByAdaGC

Pairs = list[tuple[Tensor, Tensor | None]]
"""Parameters, and gradients or None."""


def clip_pairs(clip: ClipGradByAdaGC, pairs: Pairs) -> Pairs:
    """Clip the gradients of one call in place, and return the pairs.

    1. Find the gradients; measure each, and sum its squared norm over the ranks
       that hold parts of the tensor.
    2. Decide, by Algorithm 1, about factors ``h`` and the next memory.
    3. Multiply every gradient by its ``h``; treat non-finite ones.
    4. Commit count and memory: a step happens, or it does not. If the optimizer
       then makes no update, take them back.

    A clip that follows another one leaves the gradients as they are.
    """
    progress, follows = clip._progress, clip._follows
    progress.settle()  # a step whose update never came
    tensors, ranks = progress.tensors, progress.ranks
    try:
        found = find_gradients(clip, pairs)
        if found is None:
            return pairs
        if not follows and found.gradients.share_memory():
            refuse_shared_memory(pairs)
        if not ranks.has_agreed:  # summary() may have come before fleet.init
            ranks.reducer = None
        reducer = ranks.reducer or progress.reducer()
    except Exception as error:
        if not ranks.has_agreed:
            ranks.agree_once(settings_of(progress.state()), error)
        raise
    if not ranks.has_agreed:
        ranks.agree_once(settings_of(progress.state()))
    squared_norm = found.gradients.squared_norms()
    if reducer.reductions:  # other ranks hold parts of these tensors
        squared_norm = reducer.whole_norms(squared_norm)

    caller = find_caller()
    makes_step = bool(found.indexes) or reducer.communicates
    steps = progress.steps.after(found.indexes, caller, makes_step)
    if not makes_step:
        progress.steps = steps
        return pairs
    _notice_mistakes(clip, steps, caller)
    is_due = steps.num_steps > max(clip.t_start, 1) and not follows
    if is_due and ranks.compared_step in (None, steps.num_steps):
        ranks.compared_step = steps.num_steps
        ranks.compare(tensors.keys, tensors.layout, squared_norm)
    memory = progress.known()
    index = steps.num_steps - 1 - memory.start
    numbers = squared_norm, memory, reducer, index
    done = decide(clip, *numbers, found.gradients.is_on_gpu)
    if not follows:
        found.gradients.scale_(done.h, done.discard)
    call = Call(found.present, done.norm, done.h)
    _commit(progress, call, steps, done.memory)
    if caller is not None:
        progress.awaits_update = expect_update(caller, progress)
    return pairs


class Found(NamedTuple):
    """The gradients that one call of a clip has to clip."""

    indexes: list[int]  # first index of each one's parameter
    present: list[int]  # indexes of all tensors or units in them
    gradients: GradientList


def find_gradients(clip: ClipGradByAdaGC, pairs: list[Any]) -> Found | None:
    """Find the gradients to clip among an optimizer's pairs.

    Returns None in a step that only makes the optimizer's states.
    """
    tensors, ranks = clip._progress.tensors, clip._progress.ranks
    cuts = tensors.cuts  # None: each tensor has a parameter of its own

    # Which pairs: by one pass in C, or else by Python.
    places = cuts.places if cuts else None
    length = len(tensors.keys if places is None else places)
    read = None
    if not (ranks.in_buffers or get_unique_process_mesh_map()):
        read = tensors.reader.read(pairs, places, length)
    if read is None:
        try:
            read = look_up(pairs, tensors, ranks, clip.overrides)
        except Exception as error:
            if cuts:
                cuts.tell(str(error), ranks.topology())
            raise
    if read is None:
        return None
    if cuts is None and read.descriptors is not None:
        found = GradientList(read.gradients, None, read.descriptors)
        return Found(read.indexes, read.indexes, found)

    # Where their units lie, and in which order the gradients stand.
    gradients = (gradient for _, gradient in read.pairs)
    by_index = dict(zip(read.indexes, gradients, strict=True))
    order: Iterable[int] = range(len(tensors.keys))
    segments, present = None, read.indexes
    if cuts:
        exempts = clip.overrides.exempts
        segments = cuts.find_segments(by_index, ranks.topology(), exempts)
        order, present = cuts.places, cuts.present(read.indexes)
    in_order = read.gradients or [by_index.get(index) for index in order]
    found = GradientList(in_order, segments, read.descriptors)
    return Found(read.indexes, present, found)


def _commit(
    progress: Progress, call: Call, steps: StepCount, memory: Memory
) -> None:
    """Take over a call that is done."""
    before = progress.steps
    begins = steps.num_steps > before.num_steps
    if begins or steps.optimizer != before.optimizer:
        progress.before = before, progress.memory
    calls, last = progress.calls, progress.last
    if not calls or calls[-1].present is not call.present:
        progress.tensors.observed.update(call.present)
    if begins and steps.place <= last.place:
        calls = []
    mine = {*call.present} if calls else set()
    calls = [other for other in calls if mine.isdisjoint(other.present)]
    progress.calls, progress.last = [*calls, call], steps
    progress.steps, progress.memory = steps, memory


class Decision(NamedTuple):
    """What becomes of the gradients of one call, and of the memory."""

    norm: Tensor  # float32 [num_tensors], before the clip
    h: Tensor  # float32 [num_tensors], factor of each gradient, from 0 to 1
    memory: Memory  # after the call
    discard: Tensor | None  # bool [num_tensors]: gradients that become 0


def decide(
    clip: ClipGradByAdaGC,
    squared_norm: Tensor,
    memory: Memory,
    reducer: Reducer,
    index: int,
    is_on_gpu: bool,
) -> Decision:
    """Apply Algorithm 1 to the norms of one call; change nothing.

    ``squared_norm``, float32 ``[num_tensors]``, is of whole tensors: 0 without
    a gradient, Inf or NaN where the gradient holds one. ``index`` counts steps
    from 0, or from ``restart_warmup()``. ``is_on_gpu``: the CUDA kernels have
    some of the gradients.

    Raises:
        FloatingPointError: A norm is not finite, and ``nonfinite="raise"``.
    """
    if is_on_gpu and index >= clip.t_start:
        done = _by_kernel(clip, squared_norm, memory, index)
        if done is not None:
            return done
    norm = rule.square_root(squared_norm)
    if clip.nonfinite == "raise":
        keys = clip._progress.tensors.keys
        refuse_nonfinite(norm, keys, memory.start + index + 1, reducer)
    support = None
    if index < clip.t_start:
        h, gamma, support = _warm_up(clip, norm, memory, reducer)
    else:
        h, gamma = _adapt(clip, norm, memory.gamma, index)
    h, discard, num_nonfinite = treat_nonfinite(
        clip.nonfinite, h, norm, memory.num_nonfinite
    )
    after = Memory(gamma, support, num_nonfinite, memory.start)
    return Decision(norm, h, after, discard)


def _warm_up(
    clip: ClipGradByAdaGC, norm: Tensor, memory: Memory, reducer: Reducer
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Apply lines 6 to 9: GlobalGC, and how gamma starts.

    In a hybrid-parallel run: one all-reduce of 3 numbers. Returns ``h``, gamma
    and its support.
    """
    gamma, support = memory.gamma, memory.support
    counted = reducer.counted(norm)
    squared_norm = rule.global_squared_norm(counted)
    sums = [squared_norm, *rule.log_change(counted, gamma)]
    total = reducer.global_sum(paddle.concat(sums))
    squared_norm, change, count = _C_ops.split_with_num(total, 3, 0)
    global_norm = squared_norm.sqrt().astype("float32")
    h = rule.global_scale(global_norm, clip.lambda_abs)
    every_h = h.expand_as(norm)
    if not clip._counts_support:
        return every_h, rule.running_minimum(h * norm, gamma), None
    if support is None:  # t_start was raised after the warm-up
        support = rule.FULL_SUPPORT * paddle.isfinite(gamma).astype("float32")
    if clip.init == "warmup_ema":
        change = rule.mean_change(change, count, paddle.ones_like(h))
        beta = rule.warmup_beta(clip.t_start)
        observed = rule.supported_average(norm, gamma, support, change, beta)
    else:
        change = rule.mean_change(change, count, h)
        observed = rule.supported_minimum(h * norm, gamma, support, change)
    return every_h, *observed


def _adapt(
    clip: ClipGradByAdaGC, norm: Tensor, gamma: Tensor, index: int
) -> tuple[Tensor, Tensor]:
    """Apply lines 13 and 15: ``h`` of each tensor, and gamma's average."""
    own: dict[str, Any] = {"lambda_rel": clip.lambda_rel, "beta": clip.beta}
    if clip.overrides.names:
        own |= clip.overrides.vectors(clip._progress.tensors.keys, own)
    lambda_rel, beta = own["lambda_rel"], own["beta"]
    h = rule.adaptive_scale(norm, gamma, lambda_rel)
    if _grows_faster(clip, index):
        bound = rule.growth_bound(index, clip.t_start, lambda_rel)
        return h, rule.bounded_average(norm, gamma, beta, bound)
    return h, rule.moving_average(h * norm, gamma, beta)


def _grows_faster(clip: ClipGradByAdaGC, index: int) -> bool:
    """Whether gamma may grow faster than Algorithm 1 lets it."""
    lowest = clip.overrides.lowest("lambda_rel", clip.lambda_rel)
    return clip.init == "warmup_ema" and bool(
        rule.growth_bound(index, clip.t_start, lowest) > lowest
    )


def _by_kernel(
    clip: ClipGradByAdaGC, squared_norm: Tensor, memory: Memory, index: int
) -> Decision | None:
    """Apply :func:`_adapt` by one kernel, if all tensors share the arguments.

    None where the kernel cannot do it.
    """
    differs = clip.overrides.names or clip.nonfinite == "raise"
    if differs or _grows_faster(clip, index):
        return None
    done = adaptive_step(
        squared_norm,
        memory.gamma,
        memory.num_nonfinite,
        lambda_rel=clip.lambda_rel,
        beta=clip.beta,
        zeroes_nonfinite=clip.nonfinite == "zero",
    )
    if done is None:
        return None
    after = Memory(done.gamma, None, done.num_nonfinite, memory.start)
    return Decision(done.norm, done.h, after, done.discard)


def treat_nonfinite(
    nonfinite: NonFinite, h: Tensor, norm: Tensor, num_nonfinite: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Replace ``h`` where a norm is not finite, as ``nonfinite`` says.

    Returns ``h``, which gradients to discard (bool ``[num_tensors]``; None:
    none), and in how many steps each tensor was not finite.
    """
    if nonfinite == "raise":
        return h, None, num_nonfinite
    finite = paddle.isfinite(norm)
    discard = paddle.logical_not(finite)
    num_nonfinite = num_nonfinite + discard.astype("int32")
    if nonfinite == "propagate":
        h = paddle.where(finite, h, paddle.ones_like(h))
        return h, None, num_nonfinite
    h = paddle.where(finite, h, paddle.zeros_like(h))
    return h, discard, num_nonfinite


def _notice_mistakes(
    clip: ClipGradByAdaGC, steps: StepCount, caller: Caller | None
) -> None:
    """Refuse or warn of what single steps show, before they change anything."""
    progress = clip._progress
    before, tensors = progress.steps, progress.tensors
    begins = steps.num_steps > before.num_steps
    # Unbound, it knows the tensors of all groups after a step.
    knows_all = tensors.is_bound or (begins and progress.calls)
    if clip.overrides.awaits_tensors and knows_all:
        gather = progress.reducer().gather
        clip.overrides.refuse_unused(tensors.keys, gather)
    if steps.is_mixed and not before.is_mixed:
        warnings.warn(
            "ClipGradByAdaGC is called by an optimizer and, for the same "
            "tensors, by your own code: each call counts as a step, so that "
            "its warm-up ends early. Leave one of the two out",
            stacklevel=8,
        )
    if not begins or clip._follows:
        return
    if not before.num_steps:
        warn_of_a_missing_state(progress, caller)
    index = steps.num_steps - 1 - progress.memory.start
    if index == clip.t_start + 1:
        warn_of_low_gammas(clip, progress)
