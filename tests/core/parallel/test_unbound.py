# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip that does not know the model is refused where that matters."""

import pytest
from helpers import make_parameters

from paddle_adagc.parallel import agreement
from paddle_adagc.parallel.agreement import (
    check_alone,
    check_unbound,
    refuse_unknown_owners,
)
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.topology import Axis, Topology


@pytest.fixture
def expert():
    (parameter,) = make_parameters([[2]])
    parameter.expert = parameter.no_sync = True
    return parameter


def ranks(monkeypatch, count):
    monkeypatch.setattr(agreement.dist, "get_world_size", lambda: count)


def test_an_unbound_clip_sees_all_or_is_refused(expert, monkeypatch):
    (dense,) = make_parameters([[2]])
    several = Topology(data=Axis(0, 2), world=object())
    check_unbound("C", None, [dense, expert])
    check_unbound("C", Topology(), [expert])
    check_unbound("C", several, [dense])
    with pytest.raises(RuntimeError, match=r"C needs .* clip\.bind\(model\)"):
        check_unbound("C", Topology(model=Axis(0, 2)))
    with pytest.raises(RuntimeError, match=r"clip\.bind"):
        check_unbound("C", several, [dense, expert])
    ranks(monkeypatch, 2)
    with pytest.raises(RuntimeError, match=r"clip\.bind"):
        check_unbound("C", None, [expert])


def test_experts_on_ranks_without_fleet_are_refused(monkeypatch):
    layout = [TensorLayout(key="a"), TensorLayout(key="b", is_expert=True)]
    check_alone(layout)
    ranks(monkeypatch, 2)
    check_alone(layout[:1])
    with pytest.raises(RuntimeError, match=r"1 expert tensors \(b, .* 2 ranks"):
        check_alone(layout)


def test_stage_2_needs_a_known_group(monkeypatch):
    monkeypatch.setattr(agreement, "is_called_by", lambda step: False)
    refuse_unknown_owners("C", None)
    monkeypatch.setattr(agreement, "is_called_by", lambda step: True)
    refuse_unknown_owners("C", Topology(sharding=Axis(0, 2)))
    for topology in (None, Topology()):
        with pytest.raises(RuntimeError, match=r"C needs .* stage 2"):
            refuse_unknown_owners("C", topology)
