# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
from adagc_lab.data.config import DataConfig, PrepareConfig


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DataConfig, {"kind": "stdlb"}, "got 'stdlb', did you mean 'stdlib'"),
        (DataConfig, {"seed": 2**32}, "seed must be less than 4294967296, got"),
        (DataConfig, {"kind": "mmap"}, "prefix is None"),
        (
            DataConfig,
            {"kind": "mmap", "prefix": "a/b.bin"},
            "leave its ending out, 'a/b'",
        ),
        (PrepareConfig, {"inputs": ()}, "give local files or a dataset of"),
        (PrepareConfig, {"hub_name": "en"}, "hub_name needs hub"),
        (PrepareConfig, {"output": "a.bin"}, "output: 'a.bin'"),
        (PrepareConfig, {"num_workers": 0}, "num_workers must be at least 1"),
    ],
)
def test_a_bad_value_is_named(kind, values, message):
    good = {"inputs": ("a.jsonl",), "output": "a", "tokenizer": "bytes"}
    with pytest.raises(ValueError, match=message):
        kind(**(good if kind is PrepareConfig else {}) | values)


def test_values_that_are_ignored_alone_are_warned_about():
    with pytest.warns(UserWarning, match=r"prefix=.* is ignored") as caught:
        DataConfig(kind="fixed_sequences", prefix="a/b")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataConfig(kind="fixed_sequences", num_sequences=8)
        DataConfig(kind="mmap", prefix="a/b")
