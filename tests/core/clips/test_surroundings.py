# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What surrounds a clip: Paddle's defaults and flags, odd gradients."""

import warnings

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, gammas, make_parameters

from paddle_adagc import ClipGradByAdaGC, make_clip
from paddle_adagc.clips.agc import _Units
from paddle_adagc.kernels.host import HostTensors
from paddle_adagc.kernels.operators import OperatorTensors

CLIPS = ["adagc", "zclip", "global_adagc", "tensor_wise", "agc"]
SHAPES = [[4], [6]]


def clipped_series(clip, parameters):
    """60 steps across every warm-up, with outliers and a lost tensor."""
    rng = np.random.default_rng(0)
    out = []
    for step in range(60):
        grads = [rng.normal(size=shape) for shape in SHAPES]
        grads[0] *= 20 if step % 7 == 3 else 1
        grads[1][0] *= np.nan if step == 50 else 1
        out += clip_arrays(clip, parameters, grads)
    return np.concatenate(out)


def make(name):
    values = {"t_start": 20} if "adagc" in name else {}
    return make_clip(name, **values)


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_default_dtype_makes_no_difference(name, dtype):
    parameters = make_parameters(SHAPES)
    expected = clipped_series(make(name), parameters)
    paddle.set_default_dtype(dtype)
    try:
        got = clipped_series(make(name), parameters)
    finally:
        paddle.set_default_dtype("float32")
    np.testing.assert_array_equal(got, expected)


@pytest.fixture
def nan_check():
    """Paddle's search for Inf and NaN, in all operators."""
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    yield
    is_on = paddle.get_flags("FLAGS_check_nan_inf")["FLAGS_check_nan_inf"]
    paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert is_on


@pytest.mark.parametrize("backend", ["operators", "host"], indirect=True)
@pytest.mark.parametrize("name", CLIPS)
def test_search_for_nan_can_be_on(name, backend, nan_check):
    clip = make(name)
    model = paddle.nn.LayerList([paddle.nn.Linear(2, 3) for _ in range(2)])
    clip.bind(model)
    again = make(name)
    again.set_state_dict(clip.state_dict())
    again.bind(model)
    parameters = [layer.bias for layer in model]
    for step in range(30):
        grads = [np.full(3, 10.0**step % 7), np.zeros(3)]
        clip_arrays(again, parameters, grads)
    again.metrics()
    again.summary()
    again.restart_warmup()
    again.state_dict()
    with pytest.raises(RuntimeError, match="NAN or INF"):
        paddle.zeros([1]) / paddle.zeros([1])


def test_in_place_version_of_a_gradient_left_alone_stays():
    assert HostTensors.is_available()
    small, large = paddle.full([2], 0.01), paddle.full([2], 100.0)
    before = small.inplace_version, large.inplace_version
    clip = ClipGradByAdaGC(init="constant", init_value=1.0)
    parameters = make_parameters([[2], [2]])
    clip([*zip(parameters, (small, large), strict=True)])
    assert small.inplace_version == before[0]
    assert large.inplace_version > before[1]


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("dtype", ["complex64", "int32", "bool"])
def test_gradient_that_is_not_of_reals_is_refused(name, dtype):
    clip = make(name)
    (parameter,) = make_parameters([[4]])
    gradient = paddle.ones([4]).astype(dtype)
    gradient.name = "w@GRAD"
    with pytest.raises(TypeError, match=rf"w@GRAD is paddle.{dtype}.*float32"):
        clip([(parameter, gradient)])
    assert clip.num_steps == 0


@pytest.mark.parametrize(
    ("name", "broken"),
    [("adagc", OperatorTensors), ("adagc", HostTensors), ("agc", _Units)],
)
def test_failure_while_scaling_leaves_the_clip_as_it_was(
    name, broken, monkeypatch
):
    if broken is OperatorTensors:
        monkeypatch.setattr(HostTensors, "is_available", lambda: False)
    clip = make(name)
    parameters = make_parameters(SHAPES)
    grads = [np.ones(4), np.full(6, np.nan)]
    clip_arrays(clip, parameters, grads)
    before = str((clip.metrics(), clip.state_dict()))

    def fail(self, *arguments):
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(broken, "clip_" if name == "agc" else "scale_", fail)
        with pytest.raises(RuntimeError, match="some may be clipped") as error:
            clip_arrays(clip, parameters, grads)
    assert isinstance(error.value.__cause__, MemoryError)
    assert str((clip.metrics(), clip.state_dict())) == before
    clip_arrays(clip, parameters, grads)
    assert clip.num_steps == 2
    assert clip.metrics()["nonfinite_total"] == 2


def test_one_clip_on_two_optimizers_is_warned_about():
    clip = ClipGradByAdaGC()
    first, second = make_parameters(SHAPES)

    def call(parameter):
        clip([(parameter, paddle.ones(parameter.shape))])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):  # two groups
            call(first)
            call(second)
        call(second)
    with pytest.warns(UserWarning, match="each optimizer its own clip"):
        call(second)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(second)
    assert np.isfinite(gammas(clip)).all()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place_version_of_a_clipped_gradient_changes(dtype):
    clip = ClipGradByAdaGC(lambda_abs=0.1)
    parameters = make_parameters([[4], [2]], dtype)
    gradient = paddle.ones([4], dtype)
    before = gradient.inplace_version
    clip([(parameters[0], gradient), (parameters[1], None)])
    assert gradient.inplace_version > before
