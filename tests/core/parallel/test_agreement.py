# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unaveraged gradients, experts without marks and unbound clips are noticed."""

import math
import re

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from core.parallel.simulated import along
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips import stateful
from paddle_adagc.clips.tensor_wise import ClipGradByTensorWiseGC
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.parallel import agreement
from paddle_adagc.parallel.agreement import (
    RankView,
    check_unbound,
    compare,
    refuse_unknown_owners,
)
from paddle_adagc.parallel.topology import Axis, Topology

T_START = 2


def test_norms_that_differ_by_rounding_agree():
    first = RankView({"a": 1.0, "noise": 1e-6, "mine": 3.0})
    compare([first, RankView({"a": 1.015, "noise": 5e-4})], 1)


def test_norms_of_copies_have_to_agree():
    views = [RankView({"a": 1.0}), RankView({}), RankView({"a": 1.03})]
    with pytest.raises(RuntimeError, match=r"ranks 0 and 2 .* 'a'.* 1\.03"):
        compare(views, 1)


def test_ranks_that_share_slices_have_to_hold_the_same_tensors():
    views = [
        RankView({}, (0, 1), ("a", "experts.0")),
        RankView({}, (0, 1), ("a", "experts.1")),
    ]
    with pytest.raises(RuntimeError, match=r"'experts\.0' and 'experts\.1'"):
        compare(views, 1)
    compare([views[0], RankView({}, (2, 3), ("b",))], 1)
    compare([RankView({}), RankView({}, dense=())], 1)


@pytest.mark.parametrize(
    ("device", "mine", "others", "left"),
    [
        (3, "", ["", ""], []),
        (3, "", ["", "no NVRTC"], [(3, "rank 2: no NVRTC")]),
        (3, "", ["no driver", "no NVRTC"], [(3, "rank 1: no driver")]),
        (3, "no driver", ["", ""], []),
        (3, "no driver", ["no driver", "no driver"], []),
        (None, "", ["no NVRTC"], []),
    ],
)
def test_all_ranks_use_the_kernels_or_none(
    monkeypatch, caplog, device, mine, others, left
):
    asked, found = [], []

    def gather(reasons, reason):
        asked.append(reason)
        reasons += [reason, *others]

    ranks(monkeypatch, 3)
    monkeypatch.setattr(agreement.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(agreement.dist, "all_gather_object", gather)
    monkeypatch.setattr(runtime, "current_device", lambda: device)
    monkeypatch.setattr(runtime, "why_not", {3: mine}.__getitem__)
    monkeypatch.setattr(
        runtime, "leave_to_operators", lambda *a: found.append(a)
    )
    agreement.agree_on_kernels(Topology(world=object()))
    assert (asked, found) == ([mine] if device else [], left)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(left)
    for message, (_, why) in zip(said, left, strict=True):
        assert f"of 3 ranks cannot use the CUDA kernels ({why})" in message
    caplog.clear()
    for topology in (None, Topology()):  # nothing tells which ranks take part
        agreement.agree_on_kernels(topology)
    assert caplog.text.count("rank 0 uses Paddle's operators (no driver)") == (
        2 if mine else 0
    )
    ranks(monkeypatch, 1)
    agreement.agree_on_kernels(Topology(world=object()))
    assert len(asked) == bool(device)


def test_expert_parallel_ranks_need_marked_experts():
    dense = RankView({"a": 1.0})
    with pytest.raises(RuntimeError, match=r"2 expert-parallel .*moe_expert"):
        compare([dense, dense], 2)
    compare([dense, RankView({"a": 1.0}, has_experts=True)], 2)


@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda: ClipGradByAdaGC(t_start=T_START), T_START),
        (lambda: ClipGradByAdaGC(t_start=0), 1),
        (ClipGradByTensorWiseGC, 1),
    ],
)
def test_norms_are_compared_once_after_the_warm_up(monkeypatch, make, step):
    compared = []

    def compare_with_other_ranks(keys, layout, topology, squared_norm):
        compared.append((keys, squared_norm.tolist()))

    monkeypatch.setattr(
        stateful, "compare_with_other_ranks", compare_with_other_ranks
    )
    model = paddle.nn.Linear(1, 1)
    clip = make()
    clip.bind(model)
    for size in range(1, 6):
        grads = [np.full([1, 1], size), np.zeros(1)]
        clip_arrays(clip, model.parameters(), grads)
    assert compared == [(["weight", "bias"], [(step + 1.0) ** 2, 0.0])]


def mark(layer, hcg):
    for parameter in layer.parameters():
        parameter.expert = parameter.no_sync = True
        parameter.color = {
            "color": "moe_expert",
            "group": hcg.get_moe_sharding_parallel_group(),
        }


class Model(paddle.nn.Layer):
    """A dense layer, and one expert under the name that it is given."""

    def __init__(self, expert=None):
        super().__init__()
        self.dense = paddle.nn.Linear(2, 2, bias_attr=False)
        if expert is not None:
            layer = paddle.nn.Linear(2, 2, bias_attr=False)
            self.experts = paddle.nn.LayerDict({expert: layer})


def follow(model, dense_differs=False):
    """Steps before the clip complained, its complaint, and its gathers."""
    rank = paddle.distributed.get_rank()
    clip = ClipGradByAdaGC(t_start=T_START)
    clip.bind(model)
    gathers = []
    gather = paddle.distributed.all_gather_object

    def counted(*args, **kwargs):
        gathers.append(clip.num_steps)
        gather(*args, **kwargs)

    paddle.distributed.all_gather_object = counted
    try:
        for step in range(T_START + 3):
            pairs = []
            for key, parameter in model.named_parameters():
                differs = dense_differs if key.startswith("dense") else True
                size = 1.0 + step + (0.5 * rank if differs else 0.0)
                gradient = paddle.full(parameter.shape, 0.01 * size)
                pairs.append((parameter, gradient))
            clip(pairs)
    except RuntimeError as error:
        return clip.num_steps, str(error), gathers
    finally:
        paddle.distributed.all_gather_object = gather
    return clip.num_steps, "", gathers


def follow_data_parallel():
    start_fleet(dp=2)
    return {
        "averaged": follow(Model()),
        "not averaged": follow(Model(), dense_differs=True),
    }


def follow_experts():
    hcg = start_fleet(
        ep=2,
        sharding=2,
        moe_sharding=1,
        configs={"sharding_configs": {"split_param": True}},
    )
    number = str(hcg.get_expert_parallel_rank())
    models = {
        "right": Model(number),
        "local names": Model("0"),
        "no marks": Model(number),
        "local names, no marks": Model("0"),
    }
    for name in ("right", "local names"):
        mark(models[name].experts, hcg)
    return {name: follow(model) for name, model in models.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "complaints"),
    [
        (
            follow_data_parallel,
            {"averaged": "", "not averaged": "norm of 'dense.weight'"},
        ),
        (
            follow_experts,
            {
                "right": "",
                "local names": "norm of 'experts.0.weight'",
                "no marks": "'experts.0.weight' and 'experts.1.weight'",
                "local names, no marks": "no rank has a tensor with an",
            },
        ),
    ],
)
def test_ranks_are_compared_once_at_the_first_adaptive_step(
    function, complaints
):
    for results in run_on_ranks(function, 2):
        assert results.keys() == complaints.keys()
        for name, (num_steps, complaint, gathers) in results.items():
            assert complaints[name] in complaint, name
            assert bool(complaint) == bool(complaints[name]), complaint
            assert num_steps == (T_START if complaint else T_START + 3)
            assert gathers == [T_START]


def ranks(monkeypatch, count):
    monkeypatch.setattr(agreement.dist, "get_world_size", lambda: count)


def test_an_unbound_clip_sees_all_or_is_refused(monkeypatch):
    dense, expert = make_parameters([[2], [2]])
    expert.expert = True
    several = Topology(data=Axis(0, 2), world=object())
    check_unbound("C", None, [dense, expert])
    check_unbound("C", Topology(), [expert])
    check_unbound("C", several, [dense])
    ranks(monkeypatch, 2)
    for topology, parameters in (
        (Topology(model=Axis(0, 2)), []),
        (several, [dense, expert]),
        (None, [expert]),
    ):
        with pytest.raises(RuntimeError, match=r"C needs .* clip\.bind\(model"):
            check_unbound("C", topology, parameters)


def test_stage_2_needs_a_known_group(monkeypatch):
    monkeypatch.setattr(agreement, "is_called_by", lambda step: False)
    refuse_unknown_owners("C", None)
    monkeypatch.setattr(agreement, "is_called_by", lambda step: True)
    refuse_unknown_owners("C", Topology(sharding=Axis(0, 2)))
    for topology in (None, Topology()):
        with pytest.raises(RuntimeError, match=r"C needs .* stage 2"):
            refuse_unknown_owners("C", topology)


@pytest.mark.parametrize(
    ("mark", "value"),
    [("no_sync", True), ("expert", True), ("color", {"color": "moe_expert"})],
)
def test_experts_over_data_parallel_ranks_need_bind(monkeypatch, mark, value):
    monkeypatch.setattr(
        "paddle_adagc.clips.stateful.read_topology",
        lambda: along("data")[0],
    )
    dense, expert = make_parameters([[1], [1]])
    setattr(expert, mark, value)
    clip = ClipGradByAdaGC()
    clip_arrays(clip, [dense], [np.ones(1)])
    gradient = paddle.full([1], 50.0)
    with pytest.raises(RuntimeError, match=r"clip\.bind\(model\)"):
        clip([(dense, gradient), (expert, paddle.ones([1]))])
    assert gradient.item() == 50.0


@pytest.mark.parametrize("is_bound", [False, True])
def test_experts_on_ranks_without_fleet_are_refused(monkeypatch, is_bound):
    model = paddle.nn.Linear(1, 1)
    model.weight.no_sync = True
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(model)
    ranks(monkeypatch, 2)
    message = r"1 expert tensors \(weight, .* 2 ranks.*fleet\.init"
    with pytest.raises(
        RuntimeError, match=message if is_bound else r"clip\.bind"
    ):
        clip_arrays(clip, [model.weight], [np.ones([1, 1])])


def meet_nan_on_rank_one(nonfinite, calls):
    start_fleet(dp=2)
    model = paddle.nn.Linear(1, 1)
    clip = ClipGradByAdaGC(nonfinite=nonfinite)
    clip.bind(model)
    said = []
    agreement.logger.addFilter(lambda record: said.append(record.getMessage()))
    rank = paddle.distributed.get_rank()
    grad = paddle.full([1, 1], math.nan if rank else 1.0)
    try:
        clip([(model.weight, grad)])
        for call in calls:
            getattr(clip, call)()
    except FloatingPointError as error:
        said.append(str(error))
    return said


@pytest.mark.parametrize(
    ("nonfinite", "calls", "message"),
    [
        ("raise", [], "1 tensors .* step 0: weight on rank 1"),
        ("zero", ["full_state_dict"], "'weight'.* {0: 0, 1: 1}"),
        ("zero", ["summary", "summary"], "'weight'.* {0: 0, 1: 1}"),
    ],
)
def test_data_parallel_ranks_hear_of_one_rank_s_nan(nonfinite, calls, message):
    first, second = run_on_ranks(
        meet_nan_on_rank_one, 2, nonfinite=nonfinite, calls=calls
    )
    assert first == second
    assert re.search(message, *first)
