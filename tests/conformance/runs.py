# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the kit is held against: ours, and the rules of ERNIE and Paddle."""

import functools

from reference.adaptive_norm import AdaptiveNorm

ENDS = "the warm-up ends before step t_start"


def adaptive_norm(case, is_paddle_s):
    """The rule of ``ClipGradByAdaptiveNorm``.

    It has no ``lambda_abs``. It gets ``start_clip_steps`` one smaller than
    ``t_start``, but where this is the question: else no case would hold.
    """
    if case.experts:
        raise NotImplementedError("its groups of experts")
    given = case.arguments
    start = given["t_start"] - (case.name != ENDS)
    if start < 0:
        raise NotImplementedError("it always warms up")
    clip = AdaptiveNorm(
        given["lambda_rel"], start, given["beta"], is_paddle_s=is_paddle_s
    )
    ranks = range(case.num_ranks)
    steps = []
    for t, gradients in enumerate(
        zip(*map(case.on_rank, ranks), strict=True), 1
    ):
        out = clip.step(gradients, case.split)
        steps.append([(one, {**clip.values}) for one in out])
        if t == case.resume_after:
            state, clip = clip.state_dict(), AdaptiveNorm()
            clip.is_paddle_s = is_paddle_s
            clip.set_state_dict(state)
    return case.joined([[step[rank] for step in steps] for rank in ranks])


ernie = functools.partial(adaptive_norm, is_paddle_s=False)
paddle_develop = functools.partial(adaptive_norm, is_paddle_s=True)


def clip_on_rank(case, rank, strict=False):
    """What ``ClipGradByAdaGC`` gives on one rank, under fleet if several."""
    import paddle

    from paddle_adagc import ClipGradByAdaGC

    held = case.on_rank(rank)
    layer = paddle.nn.Layer()
    shapes = {}
    for gradients in held:
        shapes |= {n: g.shape for n, g in gradients.items() if g is not None}
    for name, shape in shapes.items():
        parameter = layer.create_parameter([*shape])
        layer.add_parameter(name, parameter)
        parameter.is_distributed = name in case.split
        if name in case.experts:
            parameter.no_sync = True
    clips = [ClipGradByAdaGC(strict=strict, **case.arguments) for _ in "12"]
    for clip in clips:
        clip.bind(layer)
    clip, steps = clips[0], []
    for t, gradients in enumerate(held):
        pairs = [
            (getattr(layer, name), None if g is None else paddle.to_tensor(g))
            for name, g in gradients.items()
        ]
        out = {
            name: None if g is None else g.numpy()
            for name, (_, g) in zip(gradients, clip(pairs), strict=True)
        }
        state = clip.full_state_dict()
        gamma = {name: float(x) for name, x in state["gamma"].items()}
        steps.append((out, gamma))
        if t + 1 == case.resume_after:
            clip = clips[1]
            clip.set_state_dict(state)
    return steps


def ours(case, strict=False):
    """``ClipGradByAdaGC`` in one process."""
    if case.num_ranks > 1:
        raise NotImplementedError("one process")
    return case.joined([clip_on_rank(case, 0, strict)])


def on_two_ranks(cases):
    """Run cases on this rank of two, under fleet: tp, then dp for experts.

    Also the case to hand over whose tensor the ranks share.
    """
    import paddle.distributed as dist
    from core.parallel.layouts import Layout
    from reference import upstream_cases

    from paddle_adagc import ClipGradByAdaGC

    layout = Layout(dp=2) if cases[0].experts else Layout(mp=2)
    layout.start()
    if layout.mp > 1:
        upstream_cases.sums_no_global_norm(ClipGradByAdaGC(t_start=2))
    return [clip_on_rank(case, dist.get_rank()) for case in cases]
