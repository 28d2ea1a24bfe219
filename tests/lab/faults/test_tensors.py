# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Faults of gradients; those that a model cannot have."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.faults import (
    FaultConfig,
    FaultSchedule,
    apply_to_gradients,
    check_faults,
)

DTYPES = ["float32", "bfloat16"]


def make_fault(kind, step=3, seed=5, **options):
    config = FaultConfig(kind=kind, start=3, duration=4, **options)
    return FaultSchedule([config], seed=seed).at(step)[0]


class TwoLayers(paddle.nn.Layer):
    """Embedding, hidden layer, head; and a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.embed = paddle.nn.Embedding(10, 4)
        self.hidden = paddle.nn.Linear(4, 6)
        self.head = paddle.nn.Linear(6, 3)
        self.unused = paddle.nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(self.hidden(self.embed(tokens)))


def trained_model():
    """A model with gradients; the same at every call."""
    paddle.seed(1)
    model = TwoLayers()
    model(paddle.to_tensor([[1, 2], [3, 1]])).square().mean().backward()
    return model


def gradients(model):
    return {
        name: parameter.grad.numpy().copy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def parameter_of(values, dtype):
    """A leaf whose gradient, in the same dtype, is ``values``."""
    leaf = paddle.zeros(values.shape, "float64").astype(dtype)
    leaf.stop_gradient = False
    weights = paddle.to_tensor(values, dtype="float64")
    (leaf.astype("float64") * weights).sum().backward()
    return leaf


def corrupted(values, dtype, kind, tensor="w", **options):
    """The gradient ``values`` of one parameter, after a fault."""
    leaf = parameter_of(values, dtype)
    fault = make_fault(kind, tensor=tensor, **options)
    assert apply_to_gradients(fault, [("w", leaf)]) == ["w"]
    assert leaf.grad.dtype == leaf.dtype
    return leaf.grad


def wide(tensor):
    return tensor.astype("float64").numpy()


def hit_names(model, fault):
    return apply_to_gradients(fault, model.named_parameters())


def test_scale_of_one_tensor_of_a_pattern_and_of_all():
    before = gradients(trained_model())
    for tensor, expected in (
        ("hidden.weight", ["hidden.weight"]),
        ("h*.bias", ["head.bias", "hidden.bias"]),
        ("*", sorted(before)),
    ):
        model = trained_model()
        fault = make_fault("gradient_scale", tensor=tensor, magnitude=1e3)
        assert hit_names(model, fault) == expected
        for name, after in gradients(model).items():
            factor = 1e3 if name in expected else 1.0
            np.testing.assert_allclose(after, factor * before[name], 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_is_inf_or_nan_or_all_are_scaled(dtype):
    values = np.full([3, 5], 1.5)
    for kind, test in (("inf", np.isposinf), ("nan", np.isnan)):
        after = wide(corrupted(values, dtype, f"gradient_{kind}"))
        assert test(after).sum() == 1
        assert (after == 1.5).sum() == 14
    after = wide(corrupted(values, dtype, "gradient_scale", magnitude=-256.0))
    np.testing.assert_array_equal(after, -256.0 * values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bit", [0, 1, 4])
def test_bit_flip_moves_the_exponent(dtype, bit):
    # Clearing bit k of the exponent of x divides it by 2**(2**k), setting
    # it multiplies; 2**-14 has the exponent field 127 - 14.
    values = np.full([4], -(2.0**-14))
    after = corrupted(values, dtype, "gradient_bit_flip", exponent_bit=bit)
    after = np.sort(wide(after) / values)
    factor = 2.0 ** (-(2**bit) if (127 - 14) >> bit & 1 else 2**bit)
    assert after.tolist() == sorted([factor, 1.0, 1.0, 1.0])


def test_seeded_choice_of_bit_covers_the_exponent():
    flipped = set()
    for seed in range(60):
        options = {"kind": "gradient_bit_flip", "tensor": None, "seed": seed}
        after = corrupted(np.ones([4]), "bfloat16", **options)
        bits = after.numpy() ^ np.uint16(0x3F80)
        flipped.add(int(bits.max()))
    assert flipped == {1 << bit for bit in range(7, 15)}


@pytest.mark.parametrize("seed", range(3))
def test_same_corruption_whatever_the_order_and_the_model_state(seed):
    first, second = trained_model(), trained_model()
    for parameter in second.parameters():
        if parameter.grad is not None:
            parameter.grad.set_value(7.0 * parameter.grad)
    fault = make_fault("gradient_nan", seed=seed)
    one = apply_to_gradients(fault, list(first.named_parameters()))
    two = apply_to_gradients(fault, list(second.named_parameters())[::-1])
    assert one == two
    before, after = gradients(first), gradients(second)
    for name, values in before.items():
        np.testing.assert_array_equal(np.isnan(values), np.isnan(after[name]))


def test_seeded_choice_is_kept_over_a_burst_and_varies_between_seeds():
    model = trained_model()

    def chosen(**where):
        return tuple(hit_names(model, make_fault("gradient_inf", **where)))

    assert len({chosen(step=step, seed=2) for step in range(3, 7)}) == 1
    # The unused layer can be chosen too; then nothing is hit.
    every = {(), *((name,) for name in gradients(model))}
    assert {chosen(seed=seed) for seed in range(60)} == every


def test_frozen_and_missing_gradients():
    model = trained_model()
    model.head.weight.stop_gradient = True
    before = model.head.weight.grad.numpy().copy()
    fault = make_fault("gradient_scale", tensor="*", magnitude=2.0)
    names = ["embed.weight", "head.bias", "hidden.bias", "hidden.weight"]
    assert hit_names(model, fault) == names
    np.testing.assert_array_equal(model.head.weight.grad.numpy(), before)
    assert hit_names(model, make_fault("gradient_inf", tensor="un*")) == []


def test_main_grad_goes_before_grad():
    leaf = parameter_of(np.ones([2, 2]), "bfloat16")
    leaf.main_grad = paddle.ones([2, 2], "float32")
    fault = make_fault("gradient_scale", tensor="w", magnitude=1e3)
    assert apply_to_gradients(fault, [("w", leaf)]) == ["w"]
    assert wide(leaf.main_grad).tolist() == [[1e3] * 2] * 2
    assert wide(leaf.grad).tolist() == [[1.0] * 2] * 2


@pytest.mark.parametrize(
    "tensor",
    ["third.weight", "second.bias", "first"],  # the bias is frozen
)
def test_what_does_not_fit_is_named(tensor):
    layers = paddle.nn.Sequential(
        ("first", paddle.nn.Linear(2, 2)), ("second", paddle.nn.Linear(2, 2))
    )
    layers.second.bias.stop_gradient = True
    fits, wrong = (
        FaultConfig(kind="gradient_nan", steps=(1,), tensor=name)
        for name in ("first.weight", tensor)
    )
    check_faults([fits], layers)
    with pytest.raises(ValueError, match=f"matches tensor='{tensor}'.* mean"):
        check_faults([fits, wrong], layers)
    with pytest.raises(ValueError, match="nothing for gradient_nan to hit"):
        apply_to_gradients(make_fault("gradient_nan"), [])
