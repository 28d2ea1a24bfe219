# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_adagc.lab.data.order import (
    EpochOrder,
    RandomChoiceOrder,
    RandomOrder,
    distinct_windows,
    random_bits,
)

ORDERS = [
    RandomOrder(num_starts=1000, num_samples=300, seed=5),
    RandomChoiceOrder(starts=(3, 500, 70), num_samples=300, seed=5),
    EpochOrder(num_windows=40, seq_length=8, num_samples=300, seed=5),
]


def splitmix64_reference(state, count):
    """The generator as published: a state that is stepped and scrambled."""
    draws = []
    with np.errstate(over="ignore"):
        state = np.uint64(state)
        for _ in range(count):
            state = state + np.uint64(0x9E3779B97F4A7C15)
            z = state
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            draws.append(int(z ^ (z >> np.uint64(31))))
    return draws


def test_random_bits_are_splitmix64s():
    # Seed 0 is scrambled to 0; the first draws of the published generator.
    assert [random_bits(0, i) for i in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    drawn = [random_bits(0, i) for i in range(100)]
    assert drawn == splitmix64_reference(0, 100)


def test_neighbouring_seeds_share_no_draws():
    draws = {random_bits(seed, i) for seed in range(20) for i in range(500)}
    assert len(draws) == 20 * 500


def test_a_draw_is_the_same_in_every_release():
    assert random_bits(7, 12345) == 12593851093581533893
    assert distinct_windows(1000, 4, seed=7).tolist() == [778, 334, 271, 802]
    order = EpochOrder(num_windows=10, seq_length=1, num_samples=20, seed=7)
    assert [order[i] for i in range(10, 20)] == [9, 8, 5, 6, 2, 3, 7, 0, 1, 4]


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: type(o).__name__)
def test_access_order_does_not_matter(order):
    forward = [order[i] for i in range(len(order))]
    backward = [order[i] for i in reversed(range(len(order)))]
    assert forward == backward[::-1]
    assert len(forward) == 300


@given(
    num_starts=st.integers(1, 10**12),
    seed=st.integers(0, 2**32 - 1),
    index=st.integers(0, 10**12),
)
def test_random_starts_are_in_range(num_starts, seed, index):
    order = RandomOrder(num_starts, num_samples=10**12 + 1, seed=seed)
    assert 0 <= order[index] < num_starts


def test_random_starts_are_spread_evenly():
    order = RandomOrder(num_starts=10, num_samples=10_000, seed=1)
    counts = np.bincount([order[i] for i in range(10_000)], minlength=10)
    # 5 standard deviations of a binomial count with p = 0.1
    assert np.abs(counts - 1000).max() < 150


def test_choices_come_from_the_given_starts_alone():
    order = RandomChoiceOrder((3, 500, 70), num_samples=300, seed=5)
    assert {order[i] for i in range(300)} == {3, 500, 70}


def test_every_window_comes_once_an_epoch_in_changing_order():
    order = EpochOrder(num_windows=40, seq_length=8, num_samples=120, seed=5)
    epochs = [[order[40 * e + i] for i in range(40)] for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(0, 320, 8))
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("kind", [RandomOrder, EpochOrder])
def test_seeds_differ_and_length_does_not_matter(kind):
    def starts(seed, num_samples):
        if kind is RandomOrder:
            order = RandomOrder(1000, num_samples, seed)
        else:
            order = EpochOrder(100, 10, num_samples, seed)
        return [order[i] for i in range(20)]

    assert starts(1, 20) == starts(1, 5000) != starts(2, 20)


def test_distinct_windows_are_distinct():
    windows = distinct_windows(64, 64, seed=3)
    assert sorted(windows) == list(range(64))
