# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer under Paddle's contract: state, groups, clips, refusals."""

import functools
import inspect

import numpy as np
import paddle
import pytest
from core.optimizers.draws import SHAPES, draw_gradients, draw_weights
from core.optimizers.runs import make_weights, run, set_gradients, values
from helpers import assert_equal, make_parameters, no_waiting_for_the_device

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.optimizers import base
from paddle_adagc.optimizers.lion import Lion
from paddle_adagc.optimizers.muon import Muon
from paddle_adagc.optimizers.spam import SPAM
from paddle_adagc.optimizers.stable_adamw import StableAdamW
from paddle_adagc.optimizers.update_clips import (
    AGC,
    ClippedAdamW,
    Clippy,
    RMSClip,
)

OPTIMIZERS = {
    "Lion": Lion,
    "Muon": Muon,
    "SPAM": functools.partial(
        SPAM, threshold=4.0, reset_interval=7, warmup_steps=3, clip_start=2
    ),
    "StableAdamW": StableAdamW,
    "AGC": functools.partial(ClippedAdamW, update_clip=AGC()),
    "Clippy": functools.partial(ClippedAdamW, update_clip=Clippy()),
    "RMSClip": functools.partial(ClippedAdamW, update_clip=RMSClip()),
}
PAPER_FORMS = [
    functools.partial(ClippedAdamW, update_clip=clip(form="paper"))
    for clip in (AGC, Clippy)
]
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make(name, parameters, learning_rate=0.01, **arguments):
    return OPTIMIZERS[name](learning_rate, parameters=parameters, **arguments)


def fresh(name, dtype="float32", **arguments):
    """Weights and their optimizer, with the same names every time."""
    with paddle.utils.unique_name.guard():
        parameters = make_weights(dtype)
        return parameters, make(name, parameters, **arguments)


def warmup():
    return paddle.optimizer.lr.LinearWarmup(0.02, 8, 0.001, 0.02)


def run_scheduled(optimizer, parameters, steps):
    for step in steps:
        run(optimizer, parameters, [step])
        optimizer._learning_rate.step()
    return values(parameters)


@every_optimizer
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_early", [False, True])
def test_resumes_bit_by_bit(name, dtype, is_early, tmp_path):
    options = {"multi_precision": dtype == "bfloat16", "weight_decay": 0.1}

    def start():
        parameters = make_weights(dtype)
        return make(name, parameters, warmup(), **options), parameters

    with paddle.utils.unique_name.guard():
        whole = run_scheduled(*start(), range(20))
    with paddle.utils.unique_name.guard():
        optimizer, parameters = start()
        run_scheduled(optimizer, parameters, range(10))
        paddle.save(optimizer.state_dict(), str(tmp_path / "state.pdopt"))
        weights = [parameter.clone() for parameter in parameters]
    with paddle.utils.unique_name.guard():
        optimizer, parameters = start()
        if not is_early:  # load into an optimizer that has made steps
            run_scheduled(optimizer, parameters, range(3))
        optimizer.set_state_dict(paddle.load(str(tmp_path / "state.pdopt")))
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.set_value(weight)
        resumed = run_scheduled(optimizer, parameters, range(10, 20))
    assert_equal(resumed, whole)


@every_optimizer
def test_parameter_groups(name):
    slow, fast = make_weights()[:2], make_weights()[2:]
    groups = [
        {"params": slow, "learning_rate": 0.1, "weight_decay": 0.5},
        {"params": fast},
    ]
    optimizer = make(name, groups, weight_decay=0.2)
    got = run(optimizer, slow + fast, range(12))

    alone = [make_weights()[:2], make_weights()[2:]]
    optimizers = [
        make(name, alone[0], 0.001, weight_decay=0.5),
        make(name, alone[1], 0.01, weight_decay=0.2),
    ]
    for step in range(12):
        set_gradients(alone[0] + alone[1], draw_gradients(step))
        for optimizer in optimizers:
            optimizer.step()
    expected = values(alone[0] + alone[1])
    assert_equal(got, expected, rtol=1e-6)


def test_group_sets_a_rule_s_own_arguments():
    parameters, others = make_weights(), make_weights()
    grouped = Lion(0.01, parameters=[{"params": parameters, "beta1": 0.5}])
    plain = Lion(0.01, beta1=0.5, parameters=others)
    assert_equal(
        run(grouped, parameters, range(5)), run(plain, others, range(5))
    )
    start = {"params": make_weights(), "beta1": 0.5}
    adam = SPAM(0.01, parameters=[start])
    run(adam, start["params"], range(1))
    powers = adam._accumulators["beta1_pow_acc"].values()
    assert [float(power) for power in powers] == [0.25] * len(SHAPES)


@every_optimizer
def test_sees_clipped_gradients(name):
    clip = ClipGradByAdaGC(t_start=3)
    parameters, optimizer = fresh(name, "float64", grad_clip=clip)
    clipped_by_hand = ClipGradByAdaGC(t_start=3)
    others, twin = fresh(name, "float64")
    for step in range(16):
        run(optimizer, parameters, [step])
        set_gradients(others, draw_gradients(step))
        clipped_by_hand([(p, p.grad) for p in others])
        twin.step()
    assert clip.num_steps == 16
    assert_equal(values(parameters), values(others))
    unclipped = run(*reversed(fresh(name, "float64")), range(16))
    assert any(
        (a != b).any()
        for a, b in zip(values(parameters), unclipped, strict=True)
    )


@every_optimizer
def test_only_chosen_weights_decay(name):
    parameters = make_weights()
    chosen = parameters[1].name
    optimizer = make(
        name,
        parameters,
        weight_decay=10.0,
        apply_decay_param_fun=lambda p: p == chosen,
    )
    got = run(optimizer, parameters, range(4))
    no_decay, decayed = make_weights(), make_weights()
    without = run(make(name, no_decay, weight_decay=0.0), no_decay, range(4))
    with_decay = run(make(name, decayed, weight_decay=10.0), decayed, range(4))
    for index, weights in enumerate(got):
        expected = with_decay if index == 1 else without
        np.testing.assert_array_equal(weights, expected[index])
        assert (with_decay[index] != without[index]).any()


def rounded(array):
    """As bfloat16 holds it, float64."""
    tensor = paddle.to_tensor(array).astype("bfloat16")
    return tensor.astype("float64").numpy()


@every_optimizer
@pytest.mark.parametrize(
    "attribute",
    [
        "grad",
        pytest.param(
            "main_grad",
            marks=pytest.mark.skipif(
                paddle.__version__ < "3.3",
                reason="Paddle's step reads it from 3.3 on",
            ),
        ),
    ],
)
def test_master_weights_follow_a_float32_run(name, attribute):
    parameters, optimizer = fresh(name, "bfloat16", multi_precision=True)
    masters, twin = fresh(name)
    for master, start in zip(masters, draw_weights(), strict=True):
        master.set_value(paddle.to_tensor(rounded(start)).astype("float32"))
    dtype = "bfloat16" if attribute == "grad" else "float32"
    for step in range(10):
        gradients = [rounded(g) for g in draw_gradients(step)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            value = paddle.to_tensor(gradient).astype(dtype)
            setattr(parameter, attribute, value)
        set_gradients(masters, gradients)
        optimizer.step()
        twin.step()
    state = optimizer.state_dict()
    for parameter, master in zip(parameters, masters, strict=True):
        held = state["master_weights"][parameter.name]
        np.testing.assert_array_equal(held.numpy(), master.numpy())
        assert parameter.dtype == paddle.bfloat16
        np.testing.assert_array_equal(
            parameter.astype("float32").numpy(),
            master.astype("bfloat16").astype("float32").numpy(),
        )
    moments = [v for v in state.values() if isinstance(v, paddle.Tensor)]
    assert all(moment.dtype != paddle.bfloat16 for moment in moments)


def test_low_precision_without_master_weights_is_refused():
    with pytest.raises(ValueError, match=r"bfloat16.*multi_precision=True"):
        run(*reversed(fresh("Lion", "bfloat16")), range(1))


@every_optimizer
def test_step_does_not_wait_for_the_device(name, monkeypatch):
    parameters, optimizer = fresh(name)
    set_gradients(parameters, draw_gradients(0))
    with no_waiting_for_the_device(monkeypatch):
        optimizer.step()
        optimizer.step()


@every_optimizer
def test_missing_gradients_and_frozen_weights_are_left_alone(name):
    parameters, optimizer = fresh(name)
    parameters[0].stop_gradient = True
    set_gradients(parameters, draw_gradients(0))
    parameters[1].clear_gradient(False)
    optimizer.step()
    start = draw_weights()
    changed = [
        not np.allclose(w, s, rtol=1e-6)
        for w, s in zip(values(parameters), start, strict=True)
    ]
    assert changed == [False, False, True, True]


@pytest.mark.parametrize("kind", [*OPTIMIZERS.values(), *PAPER_FORMS])
def test_a_scalar_trains_like_one_element_and_keeps_its_shape(kind):
    scalar, vector = make_parameters([[], [1]])
    for parameter in (scalar, vector):
        parameter.set_value(paddle.full_like(parameter, 2.0))
    optimizers = [kind(0.01, parameters=[p]) for p in (scalar, vector)]
    for gradient in (0.5, -0.3, 2.0):
        set_gradients([scalar, vector], [gradient, [gradient]])
        for optimizer in optimizers:
            optimizer.step()
    assert scalar.shape == []
    assert 0 < abs(float(scalar) - 2.0) < 0.1
    assert float(scalar) == float(vector)


@every_optimizer
def test_zero_gradients_and_zero_weights_stay_finite(name):
    parameters = make_parameters(SHAPES)
    optimizer = make(name, parameters)
    for _ in range(3):
        set_gradients(parameters, [np.zeros(shape) for shape in SHAPES])
        optimizer.step()
    for weight in values(parameters):
        np.testing.assert_array_equal(weight, 0.0)


@pytest.mark.parametrize("name", ["AGC", "StableAdamW"])
def test_loads_the_state_of_paddle_s_adamw(name):
    with paddle.utils.unique_name.guard():
        parameters = make_weights("float32")
        adamw = paddle.optimizer.AdamW(0.01, parameters=parameters)
        run(adamw, parameters, range(3))
    with paddle.utils.unique_name.guard():
        parameters = make_weights("float32")
        optimizer = make(name, parameters)
        optimizer.set_state_dict(adamw.state_dict())
        run(optimizer, parameters, [3])
    power = optimizer._accumulators["beta1_pow_acc"][parameters[0].name]
    assert float(power) == pytest.approx(0.9**5)


def test_lazy_rows_of_an_embedding_train_under_spam():
    # To the letter a row without a gradient in the first steps never trains.
    (weight,) = make_parameters([[3, 2]])
    optimizer = SPAM(0.01, parameters=[weight], clip_start=2)
    for step in range(6):
        gradient = np.ones([3, 2])
        gradient[2] = step >= 4
        set_gradients([weight], [gradient])
        optimizer.step()
    assert (weight.numpy()[2] < 0).all()


def test_spam_s_reset_heals_an_infinite_second_moment():
    (weight,) = make_parameters([[2]])
    optimizer = SPAM(0.01, parameters=[weight], reset_interval=4, clip_start=3)
    positions = []
    for step in range(6):
        set_gradients([weight], [[1e20 if step == 1 else 1.0, 1.0]])
        optimizer.step()
        positions.append(weight.numpy().copy())
    (square,) = optimizer._accumulators["moment2"].values()
    assert np.isfinite(square.numpy()).all()
    assert positions[2][0] == positions[1][0]  # no step over infinity
    assert positions[5][0] < positions[2][0]


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


@pytest.mark.parametrize(
    ("name", "asks"),
    [("Lion", False), ("Muon", True), ("StableAdamW", True), ("AGC", True)],
)
def test_sharding_is_asked_about_new_tensors_once(monkeypatch, name, asks):
    asked = []
    monkeypatch.setattr(
        base,
        "check_whole_tensors",
        lambda rule, names: asked.append(names),
    )
    parameters, optimizer = fresh(name)
    for step in range(2):
        set_gradients(parameters, draw_gradients(step))
        optimizer.step()
    names = [parameter.name for parameter in parameters]
    assert asked == ([(), names] if asks else [])


def test_sparse_gradients_are_refused():
    embedding = paddle.nn.Embedding(4, 3, sparse=True)
    optimizer = Lion(0.01, parameters=embedding.parameters())
    embedding(paddle.to_tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match="sparse=False"):
        optimizer.step()


@pytest.mark.parametrize(
    ("make_wrong", "match"),
    [
        (lambda p: Lion(0.1, beta1=1.0, parameters=p), "beta1.*1.0"),
        (lambda p: Lion(0.1, weight_decay=-1.0, parameters=p), "-1.0"),
        (lambda p: Lion(0.1, parameters=[{"params": p, "beta3": 1}]), "beta"),
        (lambda p: Lion(0.1, parameters=[{"params": p, "beta1": 2.0}]), "2.0"),
        (lambda p: Muon(0.1, scaling="moonlight", parameters=p), "spectral"),
        (lambda p: Muon(0.1, num_iterations=0, parameters=p), "at least 1"),
        (lambda p: Muon(0.1, momentum=1.5, parameters=p), "momentum.*1.5"),
        (lambda p: SPAM(0.1, clip_start=500, parameters=p), "clip_start=500"),
        (lambda p: SPAM(0.1, epsilon=0.0, parameters=p), "epsilon.*0.0"),
        (lambda p: SPAM(0.1, warmup_steps=1.5, parameters=p), "warmup_steps"),
        (lambda p: ClippedAdamW(0.1, Lion, parameters=p), "no clip of updates"),
        (lambda p: AGC(form="papers"), "did you mean 'paper'"),
        (lambda p: Clippy(lambda_abs=0.0), "lambda_abs.*0.0"),
        (lambda p: RMSClip(threshold=-1.0), "threshold.*-1.0"),
        (lambda p: Lion(0.1, beta3=0.9, parameters=p), "unexpected .*'beta3'"),
    ],
)
def test_wrong_arguments_are_refused(make_wrong, match):
    of_type = ("warmup_steps", "no clip of updates", "unexpected .*'beta3'")
    error = TypeError if match in of_type else ValueError
    with pytest.raises(error, match=match):
        make_wrong(make_parameters([[2]]))


def test_static_graphs_are_refused():
    parameters = make_parameters([[2]])
    paddle.enable_static()
    try:
        with pytest.raises(RuntimeError, match="disable_static"):
            Lion(0.1, parameters=parameters)
    finally:
        paddle.disable_static()


ADAM = ("beta1", "beta2", "epsilon", "weight_decay")
SPAM_S = ("threshold", "reset_interval", "warmup_steps", "clip_start")


@pytest.mark.parametrize(
    ("make", "names", "defaults"),
    [
        (Lion, ("beta1", "beta2", "weight_decay"), [0.9, 0.99, 0.0]),
        (Muon, ("momentum", "num_iterations", "weight_decay"), [0.95, 5, 0.1]),
        (SPAM, SPAM_S, [5000.0, 500, 150, 20]),
        (StableAdamW, ADAM, [0.9, 0.99, 1e-6, 0.01]),
        (ClippedAdamW, ADAM, [0.9, 0.999, 1e-8, 0.01]),
        (RMSClip, ("threshold",), [1.0]),
    ],
)
def test_defaults(make, names, defaults):
    parameters = inspect.signature(make).parameters
    assert [parameters[name].default for name in names] == defaults
