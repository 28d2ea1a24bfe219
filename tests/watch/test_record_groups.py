# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A record of an optimizer that has parameter groups."""

import numpy as np
import paddle
import pytest
from watch.training import make_training, train

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record, read_record


def in_groups(*clips):
    """A training whose parameter groups have these clips."""
    model, _ = make_training(None)
    parameters, size = model.parameters(), 8 // len(clips)
    groups = [
        {"params": parameters[i * size :][:size], "grad_clip": clip}
        for i, clip in enumerate(clips)
    ]
    return model, paddle.optimizer.AdamW(1e-3, parameters=groups)


@pytest.mark.parametrize(
    "bounds", [(0.01, 0.01), (0.01, 0.1), (None, 0.01)], ids=str
)
def test_paddle_clips_each_parameter_group(bounds, tmp_path):
    """By a norm of its own, also where the clip is the same."""
    of = paddle.nn.ClipGradByGlobalNorm
    clips = {bound: bound and of(bound) for bound in bounds}
    model, optimizer = in_groups(*(clips[bound] for bound in bounds))
    record = Record(tmp_path, optimizer, model)
    expected = []

    def measure(step, model):
        squares = [float(p.grad.square().sum()) for p in model.parameters()]
        norms = np.sqrt([sum(squares[:4]), sum(squares[4:])])
        after = np.minimum(norms, [bound or np.inf for bound in bounds])
        expected.append(np.hypot(*after))

    train(model, optimizer, range(5), record=record, after=measure)
    record.close()
    run = read_record(tmp_path)
    found = run.column("clipped_grad_norm")
    assert found == pytest.approx(expected, rel=1e-4)
    is_one = bounds[0] == bounds[1]
    assert ("clips of groups" in run.sessions[0].facts["clip"]) != is_one
    shadow = run.sessions[0].facts["shadow"]
    assert ("lambda_abs=0.01" in shadow) == is_one, shadow


def test_groups_with_clips_of_ours_are_recorded_together(tmp_path):
    model, optimizer = in_groups(ClipGradByAdaGC(), ClipGradByAdaGC())
    for i, group in enumerate(optimizer._param_groups):
        group["grad_clip"].bind(model[2 * i : 2 * i + 2])
    record = Record(tmp_path, optimizer, model, skip_above=10)

    def raise_one(step, model):
        if step == 90:
            model[3].weight.grad *= 1e5

    train(model, optimizer, range(100), record=record, after=raise_one)
    assert record.num_skipped == 1
    record.close()
    run = read_record(tmp_path)
    assert len(run.keys) == 8
    assert run.column("global_grad_norm")[90] > 1e3
    assert (
        "clipped_grad_norm" not in run.columns
        or np.isnan(run.column("clipped_grad_norm")[:90]).all()
    )
    assert {a["step"] for a in run.alarms} == {91}
    steps = [g["grad_clip"].num_steps for g in optimizer._param_groups]
    assert steps == [99, 99]
