# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A warm-up in the middle of a run."""

import numpy as np
import pytest
from helpers import clip_arrays, gammas, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.global_clips import (
    ClipGradByGlobalAdaGC,
    ClipGradByZClip,
)
from paddle_adagc.state import load_state, save_state

SHAPES = [[3], [4]]


def series(num_steps, seed):
    rng = np.random.default_rng(seed)
    return [
        [rng.normal(size=shape) for shape in SHAPES] for _ in range(num_steps)
    ]


MAKERS = [
    lambda: ClipGradByAdaGC(t_start=4),
    lambda: ClipGradByAdaGC(t_start=4, lambda_dev=1.0),
    lambda: ClipGradByAdaGC(t_start=0),
    lambda: ClipGradByAdaGC(init="constant"),
    lambda: ClipGradByGlobalAdaGC(t_start=4),
    lambda: ClipGradByZClip(warmup_steps=4),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("saved_after", [None, 0, 2, 6])
def test_restarted_clip_is_a_new_one_that_counts_on(
    make, saved_after, tmp_path
):
    parameters = make_parameters(SHAPES)
    old, new = make(), make()
    for grads in series(7, seed=0):
        clip_arrays(old, parameters, [100 * g for g in grads])
    old.restart_warmup()
    for step, grads in enumerate(series(10, seed=1)):
        if step == saved_after:
            save_state(old.state_dict(), tmp_path)
            old = make()
            old.set_state_dict(load_state(tmp_path))
            assert old.num_steps == 7 + step
        for mine, theirs in zip(
            clip_arrays(old, parameters, grads),
            clip_arrays(new, parameters, grads),
            strict=True,
        ):
            np.testing.assert_array_equal(mine, theirs)
    assert old.num_steps == 17
    assert old.metrics()["step"] == 16
    assert old.state_dict()["warmup_start"] == 7
    assert "warmup_start" not in new.state_dict()


def test_restart_can_be_repeated():
    parameters = make_parameters(SHAPES)
    clip = ClipGradByAdaGC(t_start=2)
    for _ in range(3):
        for _ in range(3):
            clip_arrays(clip, parameters, [100.0 * np.ones(s) for s in SHAPES])
        clip.restart_warmup()
    assert np.isinf(gammas(clip)).all()
    clipped = clip_arrays(clip, parameters, [np.ones(s) for s in SHAPES])
    assert np.linalg.norm(np.concatenate(clipped)) == pytest.approx(1.0)


def test_steps_in_which_the_rule_goes_by_the_step_count():
    assert ClipGradByAdaGC(t_start=4).num_warmup_steps == 4
    assert ClipGradByAdaGC(t_start=4, init="constant").num_warmup_steps == 0


@pytest.mark.parametrize("start", [-1, 2.5, 4, {}])
def test_impossible_start_of_the_warm_up_is_refused(start):
    state = {"step": 3, "warmup_start": start, "gamma": {}, "config": {}}
    with pytest.raises(ValueError, match="warmup_start"):
        ClipGradByAdaGC().set_state_dict(state)
