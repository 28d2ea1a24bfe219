# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the CPU backend is refused.

The layouts of core/parallel prove what the ranks send each other.
"""

import paddle
import paddle.distributed as dist
import pytest

import gloo_fleet


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (paddle, "is_compiled_with_xpu", "built for an accelerator"),
        (dist, "is_initialized", r"before fleet\.init"),
    ],
)
def test_it_is_refused_where_it_cannot_help(monkeypatch, owner, name, message):
    monkeypatch.setattr(gloo_fleet, "_PATCHES", {})
    monkeypatch.setattr(owner, name, lambda: True)
    with pytest.raises(RuntimeError, match=message):
        gloo_fleet.enable()
    assert not gloo_fleet._enabled
