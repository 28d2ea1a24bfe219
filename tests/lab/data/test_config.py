# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
from adagc_lab.data.config import DataConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "stdlb"}, "got 'stdlb', did you mean 'stdlib'"),
        ({"seed": 2**32}, "seed must be less than 4294967296, got"),
        ({"kind": "mmap"}, "prefix is None"),
        ({"kind": "mmap", "prefix": "a/b.bin"}, "leave its ending out, 'a/b'"),
    ],
)
def test_a_bad_value_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**values)


def test_values_that_are_ignored_alone_are_warned_about():
    with pytest.warns(UserWarning, match=r"prefix=.* is ignored") as caught:
        DataConfig(kind="fixed_sequences", prefix="a/b")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataConfig(kind="fixed_sequences", num_sequences=8)
        DataConfig(kind="mmap", prefix="a/b")
