# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the clip keeps of Paddle's contract, whatever its start."""

from functools import partial

import numpy as np
import paddle
import pytest
from helpers import (
    clip_arrays,
    make_parameters,
    no_waiting_for_the_device,
)

from paddle_adagc import ClipGradByAdaGC, kernels

RULES = [
    partial(ClipGradByAdaGC, init="warmup_min", t_start=4),
    partial(ClipGradByAdaGC, init="warmup_ema", t_start=4),
    partial(ClipGradByAdaGC, t_start=0),
]
SHAPES = [[4], [6]]
every_start = pytest.mark.parametrize("make", RULES)
# What no backend has a part in.
ONE_BACKEND = pytest.mark.parametrize("backend", ["host"], indirect=True)
pytestmark = pytest.mark.usefixtures("backend")


def test_pairs_keep_their_places():
    first, free, missing, last = make_parameters([[2]] * 4)
    first.need_clip = "sharding"  # as fleet says
    free.need_clip = False
    pairs = [
        (first, paddle.full([2], 30.0)),
        (free, paddle.full([2], 100.0)),
        (missing, None),
        (last, paddle.full([2], 40.0)),
        (paddle.zeros([1]), paddle.full([1], 5.0)),  # knows no need_clip
    ]
    out = ClipGradByAdaGC()(pairs)
    assert all(p is q for (p, _), (q, _) in zip(out, pairs, strict=True))
    assert out[1][1] is pairs[1][1]
    assert out[1][1].tolist() == [100.0, 100.0]
    assert out[2][1] is None
    norm = np.sqrt(2 * 30.0**2 + 2 * 40.0**2 + 5.0**2)
    for place, value in ((0, 30.0), (3, 40.0), (4, 5.0)):
        np.testing.assert_allclose(out[place][1], value / norm, rtol=1e-6)


def kept_of(clip, key):
    """What the clip's state holds of one tensor."""
    kept = clip.state_dict().values()
    values = [values for values in kept if isinstance(values, dict)]
    return [float(numbers[key]) for numbers in values if key in numbers]


@every_start
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e20])
def test_non_finite_gradient_becomes_zero(make, value):
    clip = make()
    parameters = make_parameters([[2], [2]])
    for entry in (0.25, value, 0.25):
        grads = [np.array([entry, 0.25]), np.full(2, 1e-7)]
        before = kept_of(clip, parameters[0].name)
        clipped = clip_arrays(clip, parameters, grads)
        assert np.isfinite(clipped).all()
        np.testing.assert_allclose(clipped[1], 1e-7, rtol=1e-6)
        if entry is value:
            np.testing.assert_array_equal(clipped[0], [0.0, 0.0])
            assert kept_of(clip, parameters[0].name) == before
            metrics = clip.metrics()
            assert metrics["nonfinite"] == 1
            assert metrics["clipped_fraction"] == 0.0  # of the finite ones
            assert metrics["tensors"][parameters[0].name]["h"] == 0.0
            norm = metrics["global_grad_norm"]
            assert norm == pytest.approx(1e-7 * np.sqrt(2))
    assert clipped[0].any()


@every_start
def test_non_finite_gradient_is_propagated(make):
    clip = make(nonfinite="propagate")
    parameters = make_parameters([[2], [1]])
    small = np.full(1, 1e-7)
    clip_arrays(clip, parameters, [np.full(2, 1e-7), small])
    before = kept_of(clip, parameters[0].name)
    grads = [np.array([np.inf, 7.0]), small]
    clipped = clip_arrays(clip, parameters, grads)
    np.testing.assert_array_equal(clipped[0], [np.inf, 7.0])
    assert kept_of(clip, parameters[0].name) == before
    assert clip.metrics()["nonfinite_total"] == 1


WITH_OVERRIDES = partial(
    ClipGradByAdaGC,
    t_start=1,
    overrides={"par": {"lambda_rel": 1.5, "beta": 0.5}, "embedding": None},
)


@pytest.mark.parametrize("make", [*RULES, WITH_OVERRIDES])
@pytest.mark.parametrize("nonfinite", ["zero", "propagate"])
def test_step_does_not_wait_for_the_device(monkeypatch, make, nonfinite):
    clip = make(nonfinite=nonfinite)
    parameters = make_parameters([[3, 2], [2], [4]])
    embedding = paddle.nn.Embedding(10, 4, sparse=True)
    if nonfinite == "zero":
        model = paddle.nn.LayerDict({"embedding": embedding})
        for i, parameter in enumerate(parameters):
            model.add_parameter(f"par{i}", parameter)
        clip.bind(model, units={"par0": {"parts": ["a", "b"]}})
    embedding(paddle.to_tensor([[1, 2, 2]])).sum().backward()
    pairs = [
        (parameters[0], paddle.ones([3, 2])),
        (parameters[1], paddle.full([2], float("nan"))),
        (parameters[2], paddle.ones([4], "bfloat16")),
        (embedding.weight, embedding.weight.grad),
    ]
    for step in range(7):
        # Here AdaGC looks at what its warm-up led to, once.
        if step == getattr(clip, "t_start", -1) + 1:
            clip(pairs)
            continue
        with no_waiting_for_the_device(monkeypatch):
            clip(pairs)
    assert clip.num_steps == 7


@every_start
def test_sparse_gradient_is_clipped_as_the_dense_one(make):
    weights, clips = [], []
    for sparse in (True, False):
        paddle.seed(0)
        embedding = paddle.nn.Embedding(12, 4, sparse=sparse)
        start = embedding.weight.numpy()
        clips.append(make())
        clips[-1].bind(embedding)
        optimizer = paddle.optimizer.SGD(
            0.1, parameters=embedding.parameters(), grad_clip=clips[-1]
        )
        rng = np.random.default_rng(0)
        for step in range(8):
            rows = paddle.to_tensor(rng.integers(0, 12, [5]))
            scale = 100.0 if step == 5 else 1.0
            (scale * embedding(rows).square().sum()).backward()
            optimizer.step()
            optimizer.clear_grad()
        weights.append(embedding.weight.numpy())
    np.testing.assert_allclose(*weights, rtol=1e-5)
    assert not np.allclose(weights[0], start)
    kept = [kept_of(clip, "weight") for clip in clips]
    assert kept[0] == pytest.approx(kept[1], rel=1e-5)


@pytest.fixture
def nan_check():
    """Paddle's search for Inf and NaN, in all operators."""
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    yield
    is_on = paddle.get_flags("FLAGS_check_nan_inf")["FLAGS_check_nan_inf"]
    paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert is_on


@every_start
@pytest.mark.parametrize("backend", ["operators"], indirect=True)
def test_search_for_nan_can_be_on(make, backend, nan_check):
    clip, again = make(), make()
    model = paddle.nn.LayerList([paddle.nn.Linear(2, 3) for _ in range(2)])
    clip.bind(model)
    again.bind(model)
    again.set_state_dict(clip.state_dict())
    parameters = [layer.bias for layer in model]
    for step in range(8):
        grads = [np.full(3, 10.0**step % 7), np.zeros(3)]
        clip_arrays(again, parameters, grads)
    again.metrics()
    again.summary()
    again.restart_warmup()
    again.state_dict()
    with pytest.raises(RuntimeError, match="NAN or INF"):
        paddle.zeros([1]) / paddle.zeros([1])


@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_gradient_that_is_not_of_reals_is_refused(dtype):
    clip = ClipGradByAdaGC()
    (parameter,) = make_parameters([[4]])
    gradient = paddle.ones([4]).astype(dtype)
    gradient.name = "w@GRAD"
    with pytest.raises(TypeError, match=rf"w@GRAD is paddle.{dtype}.*float32"):
        clip([(parameter, gradient)])
    assert clip.num_steps == 0


def test_failure_while_scaling_leaves_the_clip_as_it_was(monkeypatch):
    clip = ClipGradByAdaGC()
    parameters = make_parameters(SHAPES)
    grads = [np.ones(4), np.full(6, np.nan)]
    clip_arrays(clip, parameters, grads)
    before = str((clip.metrics(), clip.state_dict()))

    def fail(self, *arguments):
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(kernels.BACKENDS[0], "scale_", fail)
        with pytest.raises(RuntimeError, match="some may be clipped") as error:
            clip_arrays(clip, parameters, grads)
    assert isinstance(error.value.__cause__, MemoryError)
    assert str((clip.metrics(), clip.state_dict())) == before
    clip_arrays(clip, parameters, grads)
    assert clip.num_steps == 2
    assert clip.metrics()["nonfinite_total"] == 2
