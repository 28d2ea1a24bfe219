# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""When the CPU backend may be switched on, and what that changes."""

import subprocess
import sys

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks

from paddle_adagc.lab import gloo

_SNAPSHOT = """
import paddle
from paddle.base import core
from paddle.distributed import collective, fleet, parallel
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import tensor_parallel
from paddle.distributed.fleet.utils import tensor_fusion_helper

owners = (core.ProcessGroup, collective, parallel, parallel.ParallelEnv,
          mp_ops, tensor_parallel, tensor_fusion_helper)
before = [dict(vars(owner)) for owner in owners]
alignment = dict(tensor_fusion_helper.alignment)
import paddle_adagc.lab.gloo
assert before == [dict(vars(owner)) for owner in owners]
assert alignment == tensor_fusion_helper.alignment
"""


def _enable_again():
    def replaced():
        return [
            getattr(owner, name)
            for patches in gloo._PATCHES.values()
            for owner, name, _ in patches
        ]

    before = replaced()
    gloo.enable()
    return all(a is b for a, b in zip(before, replaced(), strict=True))


def test_importing_changes_nothing():
    subprocess.run([sys.executable, "-c", _SNAPSHOT], check=True)


def test_enabling_twice_is_enabling_once():
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
