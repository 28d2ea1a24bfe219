# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments of any size: refused by name, or a clip that works."""

import math
import tempfile
import warnings

import pytest
from helpers import clip_arrays, make_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_adagc import ClipGradByAdaGC, load_state, save_state
from paddle_adagc.checks import check_decay, check_integer, check_real


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (
            check_real,
            1e-46,
            "x must be 0 or from 1.2e-38 .* got 1e-46: float32",
        ),
        (check_real, -1e39, "x must be 0 or from .* got -1e[+]39"),
        (check_real, 10**400, "x must be finite, got inf"),
        (check_real, math.nan, "x must be finite, got nan"),
        (
            check_decay,
            1 - 1e-9,
            r"x must be in \[0, 1\), in float32 too, got 0.9",
        ),
        (check_decay, -0.1, r"x must be in \[0, 1\), .* got -0.1"),
        (check_integer, 2**63, "x must be at most 9223372036854775807 .int64"),
        (check_integer, 10**900, r"got about 2\*\*2990"),
    ],
)
def test_refuses_what_float32_or_int64_does_not_hold(check, value, message):
    rest = (0,) if check is check_integer else ()
    with pytest.raises(ValueError, match=message):
        check("x", value, *rest)


SIZES = st.floats(-60, 60).map(lambda exponent: 10.0**exponent)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "lambda_rel": SIZES,
        "lambda_abs": SIZES,
        "beta": st.floats(0, 20).map(lambda exponent: 1 - 10.0**-exponent),
        "t_start": st.integers(0, 70).map(lambda exponent: 2**exponent - 1),
        "init": st.sampled_from(["warmup_min", "warmup_ema"]),
    },
)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(ARGUMENTS)
def test_accepted_arguments_leave_a_state_that_loads(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lambda_rel below 1
        try:
            clip = ClipGradByAdaGC(**arguments)
        except ValueError as error:
            assert any(name in str(error) for name in arguments)  # noqa: PT017
            return
        parameters = make_parameters([[1]])
        for norm in (1.0, 3.0, 0.5):
            clip_arrays(clip, parameters, [[norm]])
        for gamma in clip.state_dict()["gamma"].values():
            assert gamma > 0
        with tempfile.TemporaryDirectory() as folder:
            save_state(clip.full_state_dict(), folder)
            again = ClipGradByAdaGC(**arguments)
            again.set_state_dict(load_state(folder))
    assert again.num_steps == 3
