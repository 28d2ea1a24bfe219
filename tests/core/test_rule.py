# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rule's vector functions: hand-worked answers."""

import math

import backends
import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_adagc import rule
from paddle_adagc.kernels.cuda import adaptive_step

positive = st.floats(2**-20, 2**20, width=32)


def vector(values):
    return paddle.to_tensor(values, "float32")


def test_finite_norms_do_not_overflow_together():
    total = rule.global_squared_norm(vector([3e38, 3e38]))
    np.testing.assert_allclose(total.numpy(), [2 * 3e38**2], rtol=1e-6)


LOW, HIGH = -math.log(4.0), math.log(10.0)


MINIMUM = [
    (0.0, 1.0, (np.inf, 0), (1, 1)),
    (LOW, 1.0, (2, 9), (1, 10)),
    (HIGH, 3.0, (2, 9), (2, 10)),
    (0.99 * HIGH, 3.0, (2, 10), (2, 10)),
    (1.01 * LOW, 1.0, (2, 10), (2, 9)),
    (1.01 * LOW, 1.0, (2, 1), (2, 0)),
    (1.01 * LOW, 1.0, (2, 0), (1, 1)),
    (1.01 * LOW, 1.0, (np.inf, 0), (np.inf, 0)),
    (1.01 * HIGH, 3.0, (2, 10), (2, 10)),
    (1.01 * HIGH, 3.0, (2, 9), (2, 8)),
    (1.01 * HIGH, 3.0, (2, 1), (3, 1)),
    (1.01 * HIGH, 3.0, (np.inf, 0), (3, 1)),
    (0.0, 2.0 / 20, (2, 10), (0.1, 10)),
    (0.0, 1.9 / 20, (2, 10), (2, 9)),
    (0.0, 1.9 / 20, (2, 0), (1.9 / 20, 1)),
    (0.0, 200.0, (2, 9), (2, 10)),
    (0.0, 201.0, (2, 9), (2, 8)),
    (0.0, 201.0, (2, 1), (201, 1)),
    (0.0, 201.0, (2, 10), (2, 10)),
    (0.0, 0.0, (2, 3), (2, 3)),
    (0.0, np.nan, (2, 3), (2, 3)),
]
AVERAGE = [
    (0.0, 1.0, (np.inf, 0), (1, 1)),
    (LOW, 1.0, (2, 9), (1.75, 10)),
    (HIGH, 9.0, (2, 10), (2.5, 10)),
    (1.01 * LOW, 1.0, (2, 0), (1, 1)),
    (1.01 * HIGH, 9.0, (2, 10), (2, 9)),
    (0.0, 201.0, (2, 10), (2, 9)),
    (0.0, 201.0, (2, 1), (201, 1)),
    (0.0, np.inf, (2, 3), (2, 3)),
]


@pytest.mark.parametrize(
    ("function", "beta", "rows"),
    [
        (rule.supported_minimum, (), MINIMUM),
        (rule.supported_average, (0.75,), AVERAGE),
    ],
)
def test_votes_hand_worked(function, beta, rows):
    for change, norm, (gamma, support), after in rows:
        mean = paddle.to_tensor([change], "float64")
        vectors = vector([norm]), vector([gamma]), vector([support])
        got = tuple(x.item() for x in function(*vectors, mean, *beta))
        expected = tuple(np.float32(after).tolist())
        assert got == expected, (change, norm, gamma, support)


def test_growth_bound_falls_to_algorithm_1():
    bounds = [rule.growth_bound(t, 100, 1.04) for t in (100, 200, 2499, 2500)]
    np.testing.assert_allclose(bounds, [2.0, 1.5, 1 + 100 / 2499, 1.04])
    own = paddle.to_tensor([1.04, 3.0], "float64")
    got = rule.growth_bound(100, 100, own)
    np.testing.assert_array_equal(got.numpy(), [2.0, 3.0])
    assert rule.growth_bound(0, 0, 1.04) == 1.04
    assert [rule.warmup_beta(n) for n in (5, 100)] == [0.0, 0.9]


wide = st.floats(1e-12, 1e12)


# 1 - beta has no more than 2**-53: the smallest beta that it tells from 0 well.
@given(
    st.lists(
        st.tuples(wide, st.just(0.0) | st.floats(1e-6, 1, exclude_max=True)),
        min_size=2,
    )
)
@settings(deadline=None, max_examples=100)
def test_moving_average_is_right_for_every_beta(series):
    """To a few roundings of each step, though norms fall and rise at once."""
    (norm, _), *rest = series
    gamma = each = vector([norm])
    exact = np.float64(np.float32(norm))
    for norm, beta in rest:
        gamma = rule.moving_average(vector([norm]), gamma, beta)
        of_tensors = paddle.to_tensor([beta], "float64")
        each = rule.moving_average(vector([norm]), each, of_tensors)
        exact = beta * exact + (1 - beta) * np.float64(np.float32(norm))
        rtol = 1e-6 * len(rest)
        np.testing.assert_allclose(gamma.numpy(), [exact], rtol=rtol)
        np.testing.assert_allclose(each.numpy(), [exact], rtol=rtol)


numbers = st.sampled_from([0.0, np.inf, np.nan, 2.0**-10, 3.0e19]) | positive
gamma_values = positive | st.just(np.inf)


@given(
    st.lists(st.tuples(numbers, gamma_values), min_size=1),
    st.sampled_from([1.04, 0.5, 3.0]),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_fused_step_is_the_rule(tensors, lambda_rel, beta, zeroes_nonfinite):
    norm, gamma = map(vector, zip(*tensors, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        backends.use_cuda(patch)
        fused = adaptive_step(
            norm * norm,
            gamma,
            paddle.full(norm.shape, 5, "int32"),
            lambda_rel=lambda_rel,
            beta=beta,
            zeroes_nonfinite=zeroes_nonfinite,
        )
    norm = rule.square_root(norm * norm)
    h = rule.adaptive_scale(norm, gamma, lambda_rel)
    lost = ~np.isfinite(norm.numpy())
    expected = [
        (fused.norm, norm.numpy()),
        (fused.h, np.where(lost, not zeroes_nonfinite, h.numpy())),
        (fused.gamma, rule.moving_average(h * norm, gamma, beta).numpy()),
        (fused.num_nonfinite, 5 + lost),
    ]
    if zeroes_nonfinite:
        expected.append((fused.discard, lost))
    for got, wanted in expected:
        # Some processors miss the last bit of Paddle's division.
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6)
