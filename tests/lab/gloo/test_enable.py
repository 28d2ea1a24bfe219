# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""When the CPU backend may be switched on, and what that changes."""

import paddle
import paddle.distributed as dist
import pytest
from adagc_lab import gloo
from core.parallel.ranks import run_on_ranks


def replaced():
    """Whether each place in Paddle has what the backend puts there."""
    return [
        getattr(owner, name) is new
        for patches in gloo._PATCHES.values()
        for owner, name, new in patches
    ]


def _enable_again():
    gloo.enable()
    return all(replaced())


def test_importing_changes_nothing_and_a_second_call_neither():
    assert not any(replaced())
    assert run_on_ranks(_enable_again, 2) == [True, True]


@pytest.mark.parametrize(
    ("owner", "name", "message"),
    [
        (paddle, "is_compiled_with_xpu", "built for an accelerator"),
        (dist, "is_initialized", r"before fleet\.init"),
    ],
)
def test_it_is_refused_where_it_cannot_help(monkeypatch, owner, name, message):
    monkeypatch.setattr(gloo, "_PATCHES", {})
    monkeypatch.setattr(owner, name, lambda: True)
    with pytest.raises(RuntimeError, match=message):
        gloo.enable()
    assert not gloo._enabled


def test_another_paddle_is_warned_about(monkeypatch):
    monkeypatch.setattr(gloo, "_PATCHES", {})
    monkeypatch.setattr(gloo, "_enabled", False)
    monkeypatch.setattr(paddle, "__version__", "3.4.0")
    monkeypatch.setenv("PADDLE_DISTRI_BACKEND", "gloo")
    with pytest.warns(UserWarning, match="this is 3.4.0"):
        gloo.enable()
