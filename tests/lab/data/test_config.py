# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest

from paddle_adagc.lab.data.config import DataConfig, PrepareConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "stdlb"}, "got 'stdlb', did you mean 'stdlib'"),
        ({"seq_length": 0}, "seq_length must be at least 1, got 0"),
        ({"seed": 2**32}, "seed must be less than 4294967296, got 4294967296"),
        (
            {"validation_fraction": 0.0},
            "validation_fraction must be greater than 0, got 0.0",
        ),
        ({"kind": "mmap"}, "prefix is None"),
        ({"kind": "mmap", "prefix": "a/b.bin"}, "leave its ending out, 'a/b'"),
    ],
)
def test_a_bad_value_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inputs": ()}, "give local files or a dataset of the hub"),
        ({"hub_name": "en"}, "hub_name needs hub"),
        ({"output": "a.bin"}, "output: 'a.bin'"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
    ],
)
def test_a_bad_setting_of_a_dataset_is_named(values, message):
    good = {"inputs": ("a.jsonl",), "output": "a", "tokenizer": "bytes"}
    with pytest.raises(ValueError, match=message):
        PrepareConfig(**{**good, **values})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("stdlib", "num_sequences", 8),
        ("fixed_sequences", "prefix", "a/b"),
    ],
)
def test_an_ignored_value_is_warned_about(kind, name, value):
    with pytest.warns(UserWarning, match=f"{name}=.* is ignored") as caught:
        DataConfig(kind=kind, **{name: value})
    assert caught[0].filename == __file__


def test_values_in_use_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataConfig(kind="fixed_sequences", num_sequences=8)
        DataConfig(kind="mmap", prefix="a/b")
