# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults that a model cannot have are refused before it trains."""

import paddle
import pytest

from paddle_adagc.lab.faults import FaultConfig, check_faults


@pytest.fixture
def model():
    layers = paddle.nn.Sequential(
        ("first", paddle.nn.Linear(2, 2)), ("second", paddle.nn.Linear(2, 2))
    )
    layers.second.bias.stop_gradient = True
    return layers


def fault(kind, **options):
    return FaultConfig(kind=kind, steps=(1,), **options)


@pytest.mark.parametrize(
    "accepted",
    [
        fault("gradient_nan"),
        fault("gradient_nan", tensor="first.weight"),
        fault("activation_nan", tensor="second"),
        fault("repeated_token", token=9),
    ],
)
def test_what_fits_is_accepted(model, accepted):
    check_faults([accepted], model, 10)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (fault("gradient_nan", tensor="third.weight"), "third"),
        (fault("gradient_nan", tensor="second.bias"), "second"),
        (fault("gradient_nan", tensor="first"), "first"),
        (fault("activation_nan", tensor="first.weight"), "first"),
        (fault("repeated_token", token=10), "token 10 is not below 10"),
    ],
)
def test_what_does_not_fit_is_named(model, refused, message):
    with pytest.raises(ValueError, match=message):
        check_faults([fault("gradient_nan"), refused], model, 10)
