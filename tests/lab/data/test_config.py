# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import warnings

import pytest

from paddle_adagc.lab.data.config import DataConfig


def test_defaults_are_the_proxies_settings():
    config = DataConfig()
    assert config.kind == "stdlib"
    assert config.seq_length == 32
    assert config.num_sequences == 64


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DataConfig().seed = 1
    with pytest.raises(TypeError):
        DataConfig("stdlib")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "stdlb"}, "got 'stdlb', did you mean 'stdlib'"),
        ({"kind": None}, "one of stdlib, fixed_sequences, mmap"),
        ({"seq_length": 0}, "seq_length must be at least 1, got 0"),
        ({"num_sequences": 0}, "num_sequences must be at least 1, got 0"),
        ({"validation_size": -1}, "validation_size must be at least 1, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"seed": 2**32}, "seed must be less than 4294967296, got 4294967296"),
        (
            {"validation_fraction": 0.0},
            "validation_fraction must be greater than 0, got 0.0",
        ),
        (
            {"validation_fraction": 1.0},
            "validation_fraction must be less than 1, got 1.0",
        ),
        ({"validation_fraction": float("nan")}, "must be finite, got nan"),
        ({"kind": "mmap"}, "prefix is None"),
        ({"kind": "mmap", "prefix": ""}, "prefix is ''"),
        ({"kind": "mmap", "prefix": "a/b.bin"}, "leave its ending out, 'a/b'"),
    ],
)
def test_a_bad_value_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"seq_length": 32.0},
        {"seed": "0"},
        {"seed": True},
        {"validation_fraction": True},
        {"validation_fraction": "a tenth"},
        {"kind": "mmap", "prefix": 3},
    ],
)
def test_a_bad_type_is_named(values):
    name = list(values)[-1]
    with pytest.raises(
        ValueError, match=f"{name} must be .*, got {values[name]!r}"
    ):
        DataConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "stdlib", "num_sequences": 8},
        {"kind": "fixed_sequences", "prefix": "a/b"},
    ],
)
def test_an_ignored_value_is_warned_about(values):
    name = list(values)[-1]
    with pytest.warns(UserWarning, match=f"{name}=.* is ignored") as caught:
        DataConfig(**values)
    assert caught[0].filename == __file__


def test_values_in_use_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataConfig(kind="fixed_sequences", num_sequences=8)
        DataConfig(kind="mmap", prefix="a/b")
