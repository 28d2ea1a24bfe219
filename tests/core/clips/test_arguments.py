# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC refuses bad arguments by name, also between two steps."""

import re
import tempfile
import warnings

import numpy as np
import pytest
from helpers import clip_arrays, make_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_adagc import ClipGradByAdaGC, load_state, save_state


def number(name, error=ValueError):
    """Rows of a value that is refused by its name."""
    return lambda x: ({name: x}, error, rf"{name} .*{re.escape(repr(x))}")


BAD = [
    *map(number("lambda_rel"), (0, -1.04, np.nan, np.inf, 1e-46)),
    *map(number("beta"), (1.0, 1 - 1e-9, -0.1, np.nan)),
    *map(number("lambda_abs"), (0.0, 1e-50, 1e39)),
    number("t_start")(-1),
    ({"t_start": 2**63}, ValueError, "t_start must be at most 922.* .int64"),
    ({"t_start": 10**900}, ValueError, r"got about 2\*\*2990"),
    number("init")("zeros"),
    number("nonfinite")("ignore"),
    *(
        number(name, TypeError)(x)
        for name, x in (
            ("lambda_rel", "1.04"),
            ("beta", None),
            ("lambda_abs", True),
            *(("t_start", x) for x in (10.0, True, "100")),
            ("strict", 1),
        )
    ),
    *(
        ({"overrides": overrides}, error, message)
        for overrides, error, message in (
            ({"a": {"lambda_rell": 1}}, ValueError, "mean 'lambda_rel'"),
            ({"a": {"t_start": 1}}, ValueError, "takes lambda_rel, beta"),
            (
                {"a": {"lambda_rel": -1}},
                ValueError,
                r"of over.*\['a'\] must",
            ),
            (
                {"a": {"lambda_rel": 1e39}},
                ValueError,
                r"a'\] must .*1e\+39",
            ),
            ({"a": {"beta": 1.0}}, ValueError, r"beta of overrides\['a'\]"),
            ({"a": {"beta": "0.9"}}, TypeError, r"beta of over.*\['a'\]"),
            ({"a(": None}, ValueError, r"\['a\('\]: .* no regular expr"),
            ({3: None}, ValueError, r"overrides\[3\]"),
            ({"a": {}}, TypeError, "None or a dict of lambda_rel, beta"),
            ({"a": 1.1}, TypeError, "None or a dict of lambda_rel, beta"),
            (["a"], TypeError, "overrides must be a dict"),
        )
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=str)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ClipGradByAdaGC(**arguments)


@pytest.mark.parametrize(
    ("argument", "value", "kind"),
    [
        ("lambda_rel", -1, ValueError),
        ("beta", 1.0, ValueError),
        ("t_start", -1, ValueError),
        ("nonfinite", "drop", ValueError),
        ("init", "warmup_ema", AttributeError),
        ("overrides", {}, AttributeError),
        ("strict", True, AttributeError),
    ],
)
def test_an_argument_is_checked_when_it_is_set(argument, value, kind):
    clip = ClipGradByAdaGC()
    before = clip.state_dict()["config"]
    with pytest.raises(kind, match=argument):
        setattr(clip, argument, value)
    assert clip.state_dict()["config"] == before


def test_an_argument_can_be_changed_between_two_steps():
    clip = ClipGradByAdaGC(t_start=0)
    parameters = make_parameters([[1]])
    clip_arrays(clip, parameters, [np.ones(1)])
    clip.lambda_rel = 3
    assert clip.state_dict()["config"]["lambda_rel"] == 3.0
    assert clip_arrays(clip, parameters, [np.full(1, 9.0)]) == [3.0]


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
