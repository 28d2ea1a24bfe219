# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where gamma settles, and what is kept of a run."""

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from adagc_lab.studies import StudyRun
from adagc_lab.studies.price import BIN, TOGETHER, course, fixed_point

from paddle_adagc import rule


@pytest.mark.parametrize("spread", [0.1, 0.4])
def test_gamma_of_algorithm_1_settles_at_the_fixed_point(spread):
    rng = np.random.default_rng(0)
    norms = np.exp(spread * rng.standard_normal([4000, 400])).astype("float32")
    gamma = paddle.ones([400])
    ratios, clipped = [], []
    for norm in map(paddle.to_tensor, norms):
        h = rule.adaptive_scale(norm, gamma, 1.04)
        ratios.append(float(gamma.mean()))
        clipped.append(float((h < 1).astype("float32").mean()))
        gamma = rule.moving_average(h * norm, gamma, 0.99)
    expected, share = fixed_point(spread)
    mean = np.exp(spread**2 / 2)
    assert np.mean(ratios[3000:]) / mean == pytest.approx(expected, abs=0.02)
    assert np.mean(clipped[3000:]) == pytest.approx(share, abs=0.04)


def test_a_norm_that_does_not_vary_is_not_clipped():
    gamma, clipped = fixed_point(1e-3)
    assert gamma == pytest.approx(1, abs=0.01)
    assert clipped == 0


def test_course_by_hand():
    steps, alternate = np.arange(2.0 * BIN), np.tile([1.0, 3.0], BIN)
    run = SimpleNamespace(
        loss=steps,
        h=np.stack([np.tile([1.0, 0.5], BIN)] * 2 + [np.ones(2 * BIN)], axis=1),
        tensors={
            "norm": np.stack(
                [alternate, np.sqrt(10 - alternate**2), np.ones(2 * BIN)],
                axis=1,
            ),
            "gamma": np.full([2 * BIN, 3], 1.5),
        },
        metrics={"eval_loss": np.r_[np.full(2 * BIN - 1, np.nan), 0.7]},
        tensor_names=[
            "mlp.experts.0.up_proj.weight",
            "mlp.experts.1.up_proj.weight",
            "norm.weight",
        ],
    )
    found = course(run, StudyRun("ERNIE others at 2", "c.yaml"))
    assert (found["recipe"], found["clip"]) == ("ERNIE", "others at 2")
    assert found["mean_loss"] == [49.5, 149.5]
    assert found["validation_loss"] == 0.7
    assert found["routed experts"] == {
        "spread": pytest.approx([np.log(3) / 2] * 2, rel=1e-5),
        "gamma": [0.75, 0.75],
        "clipped": [0.5, 0.5],
    }
    assert found["others"]["spread"] == [0, 0]
    assert found[TOGETHER]["spread"] == pytest.approx([0, 0], abs=1e-9)
