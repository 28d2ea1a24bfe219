# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paddle's grad_clip contract: pairs, dtypes, non-finite values, metrics."""

from functools import partial

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters, no_waiting_for_the_device

from paddle_adagc import ClipGradByAdaGC, kernels

RULES = [
    partial(ClipGradByAdaGC, init="warmup_min", t_start=4),
    partial(ClipGradByAdaGC, init="warmup_ema", t_start=4),
    partial(ClipGradByAdaGC, t_start=0),
]
SHAPES = [[4], [6]]
every_start = pytest.mark.parametrize("make", RULES)
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


@pytest.mark.parametrize("pairs", [[], [(None, None)]])
def test_nothing_to_clip(pairs):
    clip = ClipGradByAdaGC()
    assert clip(pairs) == pairs
    assert clip.num_steps == 0


def test_non_finite_raise_names_the_tensors_and_changes_nothing():
    clip = ClipGradByAdaGC(nonfinite="raise")
    parameters = make_parameters([[1], [1]])
    clip_arrays(clip, parameters, [np.ones(1), np.ones(1)])
    before = clip.state_dict()
    gradients = [paddle.full([1], 50.0), paddle.full([1], float("nan"))]
    message = f"at step 2: {parameters[1].name}"
    for _ in range(2):
        with pytest.raises(FloatingPointError, match=message):
            clip([*zip(parameters, gradients, strict=True)])
        assert gradients[0].item() == 50.0
        assert clip.state_dict() == before


def test_static_graph_is_refused_with_a_way_out():
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [2, 3], "float32")
            loss = paddle.nn.Linear(3, 1)(x).mean()
            optimizer = paddle.optimizer.SGD(0.1, grad_clip=ClipGradByAdaGC())
            with pytest.raises(RuntimeError, match="enable_static"):
                optimizer.minimize(loss)
    finally:
        paddle.disable_static()


def test_parameters_alone_are_refused():
    """As for Paddle's ``paddle.nn.utils.clip_grad_norm_``."""
    model = paddle.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="to an optimizer as grad_clip"):
        ClipGradByAdaGC()(model.parameters())


def test_summary_and_metrics_of_the_whole_model():
    parameters = make_parameters([[1], [1], [1], [1]])
    clip = ClipGradByAdaGC(t_start=0)
    clip_arrays(clip, parameters, [np.array([x]) for x in (3.0, 4.0, 1.0, 0)])
    grads = [3.0, 16.0, np.nan, 0.0]
    clip_arrays(clip, parameters, [np.array([x]) for x in grads])
    summary = clip.summary()
    h = 1.04 * 4 / 16
    lost, clipped = parameters[2].name, parameters[1].name
    assert summary.pop("lowest_h") == {clipped: pytest.approx(h)}
    assert summary == pytest.approx(
        {
            "step": 1,
            "global_grad_norm": np.hypot(3, 16),
            "clipped_grad_norm": np.hypot(3, 16 * h),
            "num_tensors": 3,
            "clipped_fraction": 0.5,
            "clipped_norm_fraction": 1 - np.hypot(3, 16 * h) / np.hypot(3, 16),
            "h_min": h,
            "h_p10": h + 0.1 * (1 - h),
            "h_median": (1 + h) / 2,
            "nonfinite": 1,
            "nonfinite_total": 1,
        }
    )
    metrics = clip.summary(tensors=True)
    assert metrics["step"] == 1
    tensors = metrics["tensors"]
    assert [*tensors] == [p.name for p in parameters[:3]]
    assert tensors[lost]["h"] == 0.0
    tensors = clip.metrics()["tensors"]
    assert [*tensors] == [p.name for p in parameters]
    gamma = 0.99 * 4 + 0.01 * h * 16
    assert tensors[clipped] == pytest.approx(
        {"norm": 16.0, "gamma": gamma, "h": h}
    )
    clip_arrays(clip, parameters[:1], [np.ones(1)])
    assert [*clip.metrics()["tensors"]] == [parameters[0].name]


def test_summary_and_metrics_before_the_first_step():
    clip = ClipGradByAdaGC()
    assert (clip.metrics()["step"], clip.metrics()["tensors"]) == (-1, {})
    with pytest.warns(UserWarning, match="give it to the optimizer as grad_"):
        assert clip.summary()["num_tensors"] == 0
