# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which steps faults hit, and what they do to batches and gradients."""

import numpy as np
import paddle
import pytest
from adagc_lab.faults import (
    FaultConfig,
    apply_to_batch,
    apply_to_gradients,
    check_faults,
    faults_at,
)
from helpers import make_parameters

NAN = {"kind": "gradient_nan"}


def hit_steps(config, num_steps=40):
    return [s for s in range(num_steps) if config.burst_start(s) is not None]


def test_bursts_are_listed_or_periodic():
    listed = FaultConfig(kind="gradient_nan", steps=(9, 3), duration=2)
    assert hit_steps(listed) == [3, 4, 9, 10]
    assert [listed.burst_start(s) for s in (3, 4, 9, 10)] == [3, 3, 9, 9]
    config = FaultConfig(kind="random_tokens", start=5, every=10, duration=3)
    assert hit_steps(config, 20) == [5, 6, 7, 15, 16, 17]
    assert config.burst_start(17) == 15
    assert hit_steps(FaultConfig(kind="gradient_nan", start=7)) == [7]
    forever = FaultConfig(kind="gradient_nan", start=0, every=1)
    assert forever.burst_start(10**9) == 10**9


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (NAN, "either steps or start"),
        (NAN | {"steps": [1], "start": 1}, "either steps"),
        (NAN | {"steps": [1, 3], "duration": 3}, "3 overlap at steps 1 and 3"),
        (NAN | {"steps": [1], "every": 5}, "every=5"),
        (NAN | {"start": 5, "every": 2, "duration": 3}, "3 overlap at every=2"),
        ({"kind": "gradient_scale", "start": 5}, "needs magnitude"),
        (NAN | {"start": 5, "magnitude": 2.0}, "no magnitude, got magn.*=2.0"),
        ({"kind": "random_tokens", "start": 5, "tensor": "*"}, "no tensor"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ValueError, match=message):
        FaultConfig(**values)


def test_draws_are_those_of_recorded_runs():
    config = FaultConfig(kind="random_tokens", steps=(5,), duration=2)
    (fault,) = faults_at([config], 6, seed=3)
    drawn = [
        rng.integers(1000, size=3).tolist()
        for rng in (fault.burst_rng(), fault.step_rng(), fault.step_rng(1))
    ]
    assert drawn == [[887, 898, 297], [1, 53, 221], [358, 633, 318]]


def make_fault(kind, step=3, seed=5, **options):
    config = FaultConfig(kind=kind, start=3, duration=4, **options)
    (fault,) = faults_at([config], step, seed)
    return fault


VOCAB = 256


def make_batch(num_rows=8, length=16):
    stream = np.random.default_rng(0).integers(0, VOCAB, (num_rows, length + 1))
    return stream[:, :-1].copy(), stream[:, 1:].copy()


def corrupt(kind, batch, part=0, **where):
    fault = make_fault(kind, **where)
    return apply_to_batch(fault, *batch, vocab_size=VOCAB, part=part)


@pytest.mark.parametrize("kind", ["random_tokens", "constant_labels"])
def test_kinds_are_reproducible_and_leave_input_and_ignored_places(kind):
    batch = [array.astype(np.int32) for array in make_batch()]
    ignored = np.random.default_rng(1).random(batch[1].shape) < 0.3
    batch[1][ignored] = -100
    kept = [array.copy() for array in batch]
    first, second = corrupt(kind, batch), corrupt(kind, batch)
    for one, two, clean, before in zip(first, second, batch, kept, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(clean, before)
        assert (one.dtype, one.shape) == (np.int64, clean.shape)
    inputs, labels = first
    np.testing.assert_array_equal(labels < 0, ignored)
    assert inputs.min() >= 0
    assert max(inputs.max(), labels.max()) < VOCAB
    assert not np.array_equal(labels, batch[1])


def test_what_each_kind_draws():
    inputs, labels = corrupt("random_tokens", make_batch(32, 64))
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    assert (np.bincount(inputs.ravel(), minlength=VOCAB) > 0).sum() > 200
    others = ({}, {"step": 4}, {"seed": 6}, {"part": 1})
    drawn = [corrupt("random_tokens", make_batch(), **way) for way in others]
    assert len({inputs.tobytes() for inputs, _ in drawn}) == 4
    batch = make_batch()
    constant = [
        corrupt("constant_labels", batch, step=s)[1] for s in range(3, 7)
    ]
    assert np.unique(constant).size == 1


DTYPES = ["float32", "bfloat16"]


def trained_model():
    """A model whose gradients are 1, but in one layer, which has none."""
    model = paddle.nn.Sequential(
        ("embed", paddle.nn.Embedding(10, 4)),
        ("hidden", paddle.nn.Linear(4, 6)),
        ("head", paddle.nn.Linear(6, 3)),
        ("unused", paddle.nn.Linear(4, 2)),
    )
    for name, parameter in model.named_parameters():
        if not name.startswith("unused"):
            parameter.grad = paddle.ones_like(parameter)
    return model


def gradients(model):
    return {
        name: parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def parameter_of(values, dtype):
    """A parameter whose gradient, in the same dtype, is ``values``."""
    (parameter,) = make_parameters([values.shape], dtype)
    parameter.grad = paddle.to_tensor(values).astype(dtype)
    return parameter


def wide(tensor):
    return tensor.astype("float64").numpy()


def corrupted(values, dtype, kind, tensor="w", **options):
    """The gradient ``values`` of one parameter, after a fault."""
    leaf = parameter_of(values, dtype)
    fault = make_fault(kind, tensor=tensor, **options)
    assert apply_to_gradients(fault, [("w", leaf)]) == ["w"]
    assert leaf.grad.dtype == leaf.dtype
    return wide(leaf.grad)


def test_scale_of_one_tensor_of_a_pattern_and_of_all_but_frozen_ones():
    every = gradients(trained_model()).keys() - {"head.weight"}
    for tensor, expected in (
        ("hidden.weight", ["hidden.weight"]),
        ("h*.bias", ["head.bias", "hidden.bias"]),
        ("*", sorted(every)),
        ("un*", []),
    ):
        model = trained_model()
        model.head.weight.stop_gradient = True
        fault = make_fault("gradient_scale", tensor=tensor, magnitude=1e3)
        assert apply_to_gradients(fault, model.named_parameters()) == expected
        for name, after in gradients(model).items():
            assert (after == (1e3 if name in expected else 1.0)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_is_nan_or_all_are_scaled(dtype):
    values = np.full([3, 5], 1.5)
    after = corrupted(values, dtype, "gradient_nan")
    assert np.isnan(after).sum() == 1
    assert (after == 1.5).sum() == 14
    after = corrupted(values, dtype, "gradient_scale", magnitude=-256.0)
    np.testing.assert_array_equal(after, -256.0 * values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bit", [0, 1, 4])
def test_bit_flip_moves_the_exponent(dtype, bit):
    # Clearing bit k of the exponent of x divides it by 2**(2**k), setting
    # it multiplies; 2**-14 has the exponent field 127 - 14.
    values = np.full([4], -(2.0**-14))
    after = corrupted(values, dtype, "gradient_bit_flip", exponent_bit=bit)
    after = np.sort(after / values)
    factor = 2.0 ** (-(2**bit) if (127 - 14) >> bit & 1 else 2**bit)
    assert after.tolist() == sorted([factor, 1.0, 1.0, 1.0])


def test_seeded_choice_is_kept_over_a_burst_and_varies_between_seeds():
    model = trained_model()

    def chosen(**where):
        fault = make_fault("gradient_nan", **where)
        return tuple(apply_to_gradients(fault, model.named_parameters()))

    assert len({chosen(step=step, seed=2) for step in range(3, 7)}) == 1
    # The unused layer can be chosen too; then nothing is hit.
    every = {(), *((name,) for name in gradients(model))}
    assert {chosen(seed=seed) for seed in range(60)} == every


def test_main_grad_goes_before_grad():
    leaf = parameter_of(np.ones([2, 2]), "bfloat16")
    leaf.main_grad = paddle.ones([2, 2], "float32")
    fault = make_fault("gradient_scale", tensor="w", magnitude=1e3)
    assert apply_to_gradients(fault, [("w", leaf)]) == ["w"]
    assert wide(leaf.main_grad).tolist() == [[1e3] * 2] * 2
    assert wide(leaf.grad).tolist() == [[1.0] * 2] * 2


@pytest.mark.parametrize("tensor", ["heads.weight", "head.bias"])
def test_what_does_not_fit_is_named(tensor):
    model = trained_model()
    model.head.bias.stop_gradient = True  # so it cannot be hit
    fits, wrong = (
        FaultConfig(kind="gradient_nan", steps=(1,), tensor=name)
        for name in ("head.weight", tensor)
    )
    check_faults([fits], model)
    with pytest.raises(ValueError, match=f"matches tensor='{tensor}'.* mean"):
        check_faults([fits, wrong], model)
    with pytest.raises(ValueError, match="nothing for gradient_nan to hit"):
        apply_to_gradients(make_fault("gradient_nan"), [])
