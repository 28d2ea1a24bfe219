# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""When the CPU backend may be switched on."""

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


def test_another_paddle_is_warned_about(monkeypatch):
    monkeypatch.setattr(gloo_fleet, "_PATCHES", {})
    monkeypatch.setattr(gloo_fleet, "_enabled", False)
    monkeypatch.setattr(paddle, "__version__", "3.4.0")
    monkeypatch.setenv("PADDLE_DISTRI_BACKEND", "gloo")
    with pytest.warns(UserWarning, match="this is 3.4.0"):
        gloo_fleet.enable()
