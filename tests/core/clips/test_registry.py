# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The registry: every rule equals its twin, and refuses bad arguments."""

import re

import numpy as np
import paddle
import pytest
from helpers import assert_equal, clip_arrays, gammas, make_parameters
from reference.clips import TWINS

from paddle_adagc import make_clip
from paddle_adagc.clips.registry import CLIPS

SHAPES = [[5, 4], [4], [2, 3, 2, 2], [1]]
ZCLIPS = [
    {
        "alpha": 0.9,
        "z_thres": z_thres,
        "max_grad_norm": max_grad_norm,
        "warmup_steps": 10,
    }
    for z_thres in (2.0, 2.5)
    for max_grad_norm in (None, 1.5)
]
ADAGC = {"lambda_rel": 1.1, "beta": 0.9, "lambda_abs": 3.0, "t_start": 5}
CASES = [
    *(("host", name, {}) for name in CLIPS if name != "adagc"),
    *(("host", "zclip", arguments) for arguments in ZCLIPS),
    ("host", "agc", {"lambda_rel": 0.3, "epsilon": 1e-2}),
    ("host", "agc", {"lambda_rel": 0.01, "epsilon": 1e-2}),
    ("host", "global_adagc", ADAGC),
    ("host", "tensor_wise", {"lambda_abs": 2.0}),
    ("host", "skip_step", {"sigma": 1.0, "window": 8}),
    ("host", "skip_step", {"window": 4, "max_grad_norm": None}),
    ("host", "gradient_stabilizer", {"gamma1": 0.9, "gamma2": 0.99}),
    *(
        (backend, "adagc", {"strict": True, **arguments})
        for backend in ("operators", "host", "cuda")
        for arguments in (
            {},
            ADAGC,
            {"t_start": 0},
            {"t_start": 1},
            {"t_start": 30, "lambda_abs": 1e9},
            {"t_start": 50, "lambda_rel": 1.5, "beta": 0.9, "lambda_abs": 0.1},
        )
    ),
]


@pytest.mark.parametrize(
    ("backend", "name", "arguments"), CASES, ids=str, indirect=["backend"]
)
def test_rule_equals_its_twin(backend, name, arguments):
    arguments = {**arguments}
    clip = make_clip(name, **arguments)
    arguments.pop("strict", None)  # the twin is Algorithm 1
    twin = TWINS[name](**arguments)
    parameters = make_parameters(SHAPES)
    rng = np.random.default_rng(0)
    for parameter in parameters:
        values = rng.normal(size=parameter.shape).astype("float32")
        values[..., 0] *= 1e-4  # some units are close to 0
        parameter.set_value(values)
    weights = [p.numpy().astype("float64") for p in parameters]
    rtol = 1e-6 if name == "adagc" else 2e-5
    num_clipped = 0
    for step in range(130):
        scale = 30.0 if step % 17 == 16 else 0.05
        grads = [
            (scale * rng.normal(size=s)).astype("float32").astype("float64")
            for s in SHAPES
        ]
        grads[step % 4] *= 50 if step % 7 == 3 else 1
        expected = twin(weights, grads)
        got = clip_arrays(clip, parameters, grads)
        assert_equal(got, expected, rtol=rtol, atol=1e-9)
        if hasattr(twin, "gamma"):
            np.testing.assert_allclose(gammas(clip), twin.gamma, rtol=rtol)
        num_clipped += not np.array_equal(expected[0], grads[0])
    assert num_clipped or name == "none"


def number(name, error=ValueError):
    """Rows of a value that is refused by its name."""
    return lambda x: ({name: x}, error, rf"{name} .*{re.escape(repr(x))}")


class OpenClip(paddle.nn.ClipGradByNorm):
    """Takes any argument."""

    def __init__(self, **values):
        super().__init__(1.0)
        self.values = values


def test_a_clip_may_take_any_argument():
    clip = make_clip(f"{__name__}:OpenClip", t_start=3)
    assert clip.values == {"t_start": 3}


BAD = {
    "global_norm": [*map(number("lambda_abs"), (-1.0, np.nan, np.inf))],
    "value": [number("lambda_abs")(-1.0)],
    "adagc": [
        *map(number("lambda_rel"), (0, -1.04, np.nan, np.inf, 1e-46)),
        *map(number("beta"), (1.0, -0.1, np.nan)),
        *map(number("lambda_abs"), (0.0, 1e-50)),
        number("t_start")(-1),
        ({"t_start": 10**30}, ValueError, "t_start must be at most"),
        number("init")("zeros"),
        number("nonfinite")("ignore"),
        ({"init": "threshold", "t_start": 0}, ValueError, "at least 1, not 0"),
        *(
            ({"init": init, "init_value": x}, ValueError, f"init_value .*{x}")
            for init, x in (
                ("constant", -2.0),
                ("constant", 1e-50),
                ("threshold", 1e-46),
            )
        ),
        ({"init_value": 0.5}, ValueError, "init_value=0.5 has no meaning"),
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
    ],
    "agc": [*map(number("epsilon"), (0.0, 1e-46))],
    "global_adagc": [number("lambda_abs")(1e39)],
    "tensor_wise": [number("lambda_abs")(0.0)],
    "skip_step": [number("sigma")(0.0), number("window")(1)],
    "gradient_stabilizer": [number("gamma1")(1.0), number("gamma2")(-0.1)],
    "zclip": [
        number("alpha")(1.0),
        *map(number("z_thres"), (0.0, 1e-46)),
        number("max_grad_norm")(-1.0),
        number("warmup_steps")(0),
    ],
}


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [(name, *row) for name, rows in BAD.items() for row in rows],
    ids=str,
)
def test_bad_arguments(name, arguments, error, message):
    with pytest.raises(error, match=message):
        make_clip(name, **arguments)


@pytest.mark.parametrize(
    ("name", "argument", "value", "kind"),
    [
        ("adagc", "lambda_rel", -1, ValueError),
        ("adagc", "lambda_rel", "1.04", TypeError),
        ("adagc", "beta", 1.0, ValueError),
        ("adagc", "t_start", -1, ValueError),
        ("adagc", "nonfinite", "drop", ValueError),
        ("adagc", "init", "constant", AttributeError),
        ("adagc", "strict", True, AttributeError),
        ("adagc", "overrides", {}, AttributeError),
        ("agc", "epsilon", 0, ValueError),
        ("zclip", "alpha", 1.5, ValueError),
        ("zclip", "max_grad_norm", -1.0, ValueError),
        ("global_adagc", "beta", -0.1, ValueError),
        ("tensor_wise", "lambda_abs", 2.0, AttributeError),
    ],
)
def test_an_argument_is_checked_when_it_is_set(name, argument, value, kind):
    clip = make_clip(name)
    before = clip.state_dict()["config"]
    with pytest.raises(kind, match=argument):
        setattr(clip, argument, value)
    assert clip.state_dict()["config"] == before


def test_an_argument_can_be_changed_between_two_steps():
    clip = make_clip("adagc", t_start=0)
    parameters = make_parameters([[1]])
    clip_arrays(clip, parameters, [np.ones(1)])
    clip.lambda_rel = 3
    assert clip.state_dict()["config"]["lambda_rel"] == 3.0
    assert clip_arrays(clip, parameters, [np.full(1, 9.0)]) == [3.0]
