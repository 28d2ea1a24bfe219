# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers of clips that are not this package's; what a summary costs."""

from collections import Counter
from functools import partial

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks
from helpers import compiled_calls

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.measured import MeasuredClip
from paddle_adagc.clips.registry import CLIPS, make_clip

NUM_STEPS = 6
SUMMARIZED = (1, 4)
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_object", "broadcast")


def steps_of(clip, values):
    """Clip one step of gradients that hold these values; give them back."""
    pairs = [
        (paddle.create_parameter([len(v)], "float32"), paddle.to_tensor(v))
        for v in values
    ]
    clip(pairs)
    return [gradient.numpy() for _, gradient in pairs]


def test_paddle_s_global_clip():
    """Its numbers are those of AdaGC's warm-up, which clips so."""
    clip = MeasuredClip(paddle.nn.ClipGradByGlobalNorm(1.0))
    assert clip.summary() == {}
    twin = make_clip("adagc")
    for each in (clip, twin):
        three, four = steps_of(each, [[3.0], [0.0, 4.0]])
        assert (three[0], four[1]) == pytest.approx((0.6, 0.8))
    summary, expected = clip.summary(tensors=True), twin.summary()
    assert [t["norm"] for t in summary.pop("tensors").values()] == [3.0, 4.0]
    assert summary.pop("lowest_h") == {}  # all have the same h
    assert summary.pop("stuck") == []
    numbers = {name: expected[name] for name in summary}
    assert summary == pytest.approx(numbers)
    assert {*expected} - {*summary} == {"step", "lowest_h", "stuck"}


def test_clips_by_value_and_inf():
    clip = MeasuredClip(paddle.nn.ClipGradByValue(max=1.0))
    steps_of(clip, [[2.0, 0.0], [0.5], [np.inf]])
    rows = clip.rows()
    np.testing.assert_array_equal(rows.columns["clipped_norm"][:2], [1, 0.5])
    np.testing.assert_array_equal(rows.columns["h"][:2], [0.5, 1])
    summary = clip.summary()
    assert summary["nonfinite"] == 1
    assert summary["global_grad_norm"] == pytest.approx(np.hypot(2, 0.5))
    assert [*summary["lowest_h"].values()] == [0.5]


def test_names_are_the_model_s():
    model = paddle.nn.Linear(2, 2)
    clip = MeasuredClip(make_clip("none"))
    clip.bind(model, units={"weight": {"parts": ["a", "b"]}})
    optimizer = paddle.optimizer.SGD(
        0.1, parameters=model.parameters(), grad_clip=clip
    )
    model(paddle.ones([1, 2])).sum().backward()
    optimizer.step()
    summary = clip.summary(tensors=True)
    assert [*summary["tensors"]] == ["a.weight", "b.weight", "bias"]
    assert summary["clipped_fraction"] == 0


def test_a_step_that_is_not_due_calls_the_clip_alone():
    due = [True, False]

    def calls(clip):
        """Of the second step."""
        parameters = [paddle.create_parameter([4], "float32") for _ in "ab"]
        for _ in range(2):
            pairs = [(p, paddle.full([4], 1.0)) for p in parameters]
            seen = compiled_calls(partial(clip, pairs))
        return seen

    plain = paddle.nn.ClipGradByGlobalNorm(1.0)
    measured = MeasuredClip(plain, lambda: due.pop(0))
    assert calls(plain)
    simulator = Counter({"PyCapsule.set_eval_frame": 2})  # of to_static
    assert calls(measured) - simulator == calls(plain)
    assert measured.summary() == {}


def collectives_of_steps(name):
    """Collectives by step: of the clip, and of its summaries.

    A tensor of two is split over the two ranks.
    """
    counts, place = Counter(), [None]
    originals = {call: getattr(dist, call) for call in COLLECTIVES}

    def counted(call):
        def wrapped(*args, **kwargs):
            counts[place[0]] += 1
            return originals[call](*args, **kwargs)

        return wrapped

    from core.parallel.layouts import Layout  # needs PaddleNLP

    Layout(mp=2).start()
    model = paddle.nn.Linear(4, 4)
    model.weight.is_distributed = True
    model.weight.split_axis = 1
    clip, step = make_clip(name), 0
    if not isinstance(clip, TensorScalingClip):
        clip = MeasuredClip(clip, lambda: step in SUMMARIZED)
    clip.bind(model)
    for call in COLLECTIVES:
        setattr(dist, call, counted(call))
    for step in range(NUM_STEPS):
        place[0] = step
        clip([(p, paddle.full(p.shape, 0.1)) for p in model.parameters()])
        if step in SUMMARIZED:
            place[0] = f"summary {step}"
            clip.summary()
    return dict(counts)


def collectives_of_clips():
    return {name: collectives_of_steps(name) for name in CLIPS}


@pytest.mark.slow
def test_two_collectives_for_a_summary_and_none_in_the_steps_between():
    for name, counts in run_on_ranks(collectives_of_clips, 2)[0].items():
        for step in SUMMARIZED:  # the tensors; was one Inf or NaN somewhere?
            assert counts.pop(f"summary {step}") == 2, name
        if isinstance(make_clip(name), TensorScalingClip):
            later = [counts.get(step) for step in range(2, NUM_STEPS)]
            assert len({*later}) == 1, (name, counts)
        else:  # a sum of norms before and one of those after the clip; the
            # first time the ranks also compare arguments
            assert counts == {1: 4, 4: 2}, name
