# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer under Paddle's contract: state, groups, clips, refusals."""

import inspect
from functools import partial

import numpy as np
import paddle
import pytest
from core.optimizers.runs import (
    SHAPES,
    draw_gradients,
    draw_weights,
    fresh,
    make,
    make_weights,
    run,
    set_gradients,
    values,
)
from helpers import assert_equal, make_parameters, no_waiting_for_the_device

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.optimizers import Lion, Muon


@pytest.fixture(params=[Lion, Muon])
def kind(request):
    return request.param


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_early", [False, True])
def test_resumes_bit_by_bit(kind, dtype, is_early, tmp_path):
    def start():
        rate = paddle.optimizer.lr.LinearWarmup(0.02, 8, 0.001, 0.02)
        options = {"learning_rate": rate, "weight_decay": 0.1}
        options["multi_precision"] = dtype == "bfloat16"
        return fresh(kind, dtype, **options)

    def go_on(optimizer, parameters, steps):
        for step in steps:
            run(optimizer, parameters, [step])
            optimizer._learning_rate.step()
        return values(parameters)

    with paddle.utils.unique_name.guard():
        whole = go_on(*start(), range(20))
    with paddle.utils.unique_name.guard():
        optimizer, saved = start()
        go_on(optimizer, saved, range(10))
        paddle.save(optimizer.state_dict(), str(tmp_path / "state.pdopt"))
    with paddle.utils.unique_name.guard():
        optimizer, parameters = start()
        if not is_early:  # load into an optimizer that has made steps
            go_on(optimizer, parameters, range(3))
        optimizer.set_state_dict(paddle.load(str(tmp_path / "state.pdopt")))
        for parameter, weight in zip(parameters, saved, strict=True):
            parameter.set_value(weight)
        assert_equal(go_on(optimizer, parameters, range(10, 20)), whole)


def test_groups_have_hyper_parameters_of_their_own(kind):
    own = {"weight_decay": 0.5, "beta1": 0.5}
    if kind is Muon:
        own = {"weight_decay": 0.5, "momentum": 0.5, "adamw_beta1": 0.5}
    first, *others = make_weights()
    group = {"params": others, "learning_rate": 0.1, **own}
    optimizer = make(kind, [group, {"params": [first]}], weight_decay=0.2)
    got = run(optimizer, [first, *others], range(12))

    first, *others = make_weights()
    slow, fast = (
        make(kind, others, 0.001, **own),
        make(kind, [first], weight_decay=0.2),
    )
    for step in range(12):
        set_gradients([first, *others], draw_gradients(step))
        slow.step()
        fast.step()
    assert_equal(got, values([first, *others]), rtol=1e-6)


def test_sees_clipped_gradients(kind):
    clip, by_hand = ClipGradByAdaGC(t_start=3), ClipGradByAdaGC(t_start=3)
    optimizer, parameters = fresh(kind, grad_clip=clip)
    twin, others = fresh(kind)
    clipped = run(optimizer, parameters, range(16))
    for step in range(16):
        set_gradients(others, draw_gradients(step))
        by_hand([(p, p.grad) for p in others])
        twin.step()
    assert clip.num_steps == 16
    assert_equal(clipped, values(others))
    unclipped = run(*fresh(kind), range(16))
    pairs = zip(clipped, unclipped, strict=True)
    assert any((a != b).any() for a, b in pairs)


def test_only_chosen_weights_decay(kind):
    with_decay = run(*fresh(kind, weight_decay=10.0), range(4))
    without = run(*fresh(kind, weight_decay=0.0), range(4))
    chosen = fresh(kind)[1][1].name
    got = run(
        *fresh(
            kind,
            weight_decay=10.0,
            apply_decay_param_fun=lambda p: p == chosen,
        ),
        range(4),
    )
    assert_equal(got, [without[0], with_decay[1], *without[2:]])
    for decayed, other in zip(with_decay, without, strict=True):
        assert (decayed != other).any()


def rounded(array):
    """As bfloat16 holds it, float64."""
    tensor = paddle.to_tensor(array).astype("bfloat16")
    return tensor.astype("float64").numpy()


reads_main_grad = pytest.mark.skipif(
    paddle.__version__ < "3.3", reason="Paddle's step reads it from 3.3 on"
)


@pytest.mark.parametrize(
    ("attribute", "dtype"),
    [
        ("grad", "bfloat16"),
        pytest.param("main_grad", "float32", marks=reads_main_grad),
    ],
)
def test_master_weights_follow_a_float32_run(kind, attribute, dtype):
    optimizer, parameters = fresh(kind, "bfloat16", multi_precision=True)
    twin, masters = fresh(kind, "float32")
    for master, start in zip(masters, draw_weights(), strict=True):
        master.set_value(paddle.to_tensor(rounded(start)).astype("float32"))
    for step in range(10):
        gradients = [rounded(g) for g in draw_gradients(step)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            value = paddle.to_tensor(gradient).astype(dtype)
            setattr(parameter, attribute, value)
        set_gradients(masters, gradients)
        optimizer.step()
        twin.step()
    state = optimizer.state_dict()
    held = state.pop("master_weights")
    assert_equal(values(held[p.name] for p in parameters), values(masters))
    assert_equal(values(parameters), map(rounded, values(masters)))
    assert {p.dtype for p in parameters} == {paddle.bfloat16}
    assert paddle.bfloat16 not in {
        getattr(value, "dtype", None) for value in state.values()
    }


def test_step_does_not_wait_for_the_device(kind, monkeypatch):
    optimizer, parameters = fresh(kind, "float32")
    set_gradients(parameters, draw_gradients(0))
    with no_waiting_for_the_device(monkeypatch):
        optimizer.step()
        optimizer.step()


def test_missing_gradients_and_frozen_weights_are_left_alone(kind):
    optimizer, parameters = fresh(kind)
    parameters[0].stop_gradient = True
    set_gradients(parameters, draw_gradients(0))
    parameters[1].clear_gradient(False)
    optimizer.step()
    pairs = zip(values(parameters), draw_weights(), strict=True)
    changed = [(now != start).any() for now, start in pairs]
    assert changed == [False, False, True, True]


def test_a_scalar_trains_like_one_element_and_keeps_its_shape(kind):
    both = scalar, vector = make_parameters([[], [1]])
    for parameter in both:
        parameter.set_value(paddle.full(parameter.shape, 2.0))
    optimizers = [kind(0.01, parameters=[parameter]) for parameter in both]
    for gradient in (0.5, -0.3, 2.0):
        set_gradients(both, [gradient, [gradient]])
        for optimizer in optimizers:
            optimizer.step()
    assert scalar.shape == []
    assert 0 < abs(scalar.item() - 2.0) < 0.1
    assert scalar.item() == vector.item()


def test_zero_gradients_and_zero_weights_stay_finite(kind):
    parameters = make_parameters(SHAPES)
    optimizer = make(kind, parameters)
    for _ in range(3):
        set_gradients(parameters, [np.zeros(shape) for shape in SHAPES])
        optimizer.step()
    for weight in values(parameters):
        np.testing.assert_array_equal(weight, 0.0)


def test_muon_takes_the_matrices_that_it_is_told():
    parameters = make_weights()
    names = [parameter.name for parameter in parameters]
    optimizer = Muon(
        0.01, parameters=parameters, is_matrix_fun=lambda n: n == names[1]
    )
    run(optimizer, parameters, range(1))
    assert [*optimizer._accumulators["momentum"]] == [names[1]]
    adamw = [*optimizer._accumulators["moment1"]]
    assert adamw == [name for name in names if name != names[1]]
    optimizer = Muon(0.01, parameters=parameters, is_matrix_fun=lambda n: True)
    with pytest.raises(ValueError, match=r"\[6\].*matrices alone"):
        run(optimizer, parameters, range(1))


def test_gradients_and_weights_that_are_refused():
    with pytest.raises(ValueError, match=r"bfloat16.*multi_precision=True"):
        run(*fresh(Lion, "bfloat16"), range(1))
    embedding = paddle.nn.Embedding(4, 3, sparse=True)
    optimizer = Lion(0.01, parameters=embedding.parameters())
    embedding(paddle.to_tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match="sparse=False"):
        optimizer.step()


@pytest.mark.parametrize(
    ("make_wrong", "group", "match"),
    [
        (partial(Lion, beta1=1.0), {}, "beta1.*1.0"),
        (partial(Lion, weight_decay=-1.0), {}, "-1.0"),
        (partial(Muon, scaling="moonlight"), {}, "spectral"),
        (partial(Muon, num_iterations=0), {}, "at least 1"),
        (partial(Muon, momentum=1.5), {}, "momentum.*1.5"),
        (partial(Muon, adamw_beta2=1.0), {}, "adamw_beta2.*1.0"),
        (partial(Lion, beta3=0.9), {}, "unexpected .*'beta3'"),
        (Lion, {"beta3": 1}, "'beta3'.*'beta"),
        (Lion, {"beta1": 2}, "2"),
    ],
)
def test_wrong_arguments_are_refused(make_wrong, group, match):
    parameters = make_parameters([[2]])
    if group:
        parameters = [{"params": parameters, **group}]
    error = TypeError if match.startswith("unexpected") else ValueError
    with pytest.raises(error, match=match):
        make_wrong(0.1, parameters=parameters)


def test_static_graphs_are_refused():
    parameters = make_parameters([[2]])
    paddle.enable_static()
    try:
        with pytest.raises(RuntimeError, match="disable_static"):
            Lion(0.1, parameters=parameters)
    finally:
        paddle.disable_static()


MUON = ("momentum", "num_iterations", "weight_decay")


@pytest.mark.parametrize(
    ("make", "names", "defaults"),
    [
        (Lion, ("beta1", "beta2", "weight_decay"), [0.9, 0.99, 0.0]),
        (Muon, MUON, [0.95, 5, 0.1]),
    ],
)
def test_defaults(make, names, defaults):
    parameters = inspect.signature(make).parameters
    assert [parameters[name].default for name in names] == defaults
