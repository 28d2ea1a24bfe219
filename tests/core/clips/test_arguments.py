# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC refuses bad arguments by name, also between two steps."""

import re

import numpy as np
import pytest
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC


def number(name, error=ValueError):
    """Rows of a value that is refused by its name."""
    return lambda x: ({name: x}, error, rf"{name} .*{re.escape(repr(x))}")


BAD = [
    *map(number("lambda_rel"), (0, -1.04, np.nan, np.inf, 1e-46)),
    *map(number("beta"), (1.0, 1 - 1e-9, -0.1, np.nan)),
    *map(number("lambda_abs"), (0.0, 1e-50, 1e39)),
    number("t_start")(-1),
    ({"t_start": 2**63}, ValueError, "t_start must be at most 2..63 - 1"),
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
        ({"overrides": {"a": values}}, error, message)
        for values, error, message in (
            ({"lambda_rell": 1}, ValueError, "mean 'lambda_rel'"),
            ({"t_start": 1}, ValueError, "takes lambda_rel, beta"),
            ({"lambda_rel": 1e39}, ValueError, r"a'\] must .*1e\+39"),
            ({"beta": 1.0}, ValueError, r"beta of overrides\['a'\]"),
            ({"beta": "0.9"}, TypeError, r"beta of over.*\['a'\]"),
            ({}, TypeError, "None or a dict of lambda_rel, beta"),
            (1.1, TypeError, "None or a dict of lambda_rel, beta"),
        )
    ),
    ({"overrides": {"a(": None}}, ValueError, r"\['a\('\]: .* no regular expr"),
    ({"overrides": {3: None}}, ValueError, r"overrides\[3\]"),
    ({"overrides": ["a"]}, TypeError, "overrides must be a dict"),
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
