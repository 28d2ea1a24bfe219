# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unaveraged gradients, experts without marks and unbound clips are noticed."""

import types

import backends
import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from core.parallel.simulated import along
from helpers import clip_arrays, make_parameters
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.sequence_parallel_utils import ScatterOp

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips import stateful
from paddle_adagc.clips.tensor_wise import ClipGradByTensorWiseGC
from paddle_adagc.kernels.cuda import runtime
from paddle_adagc.parallel import agreement
from paddle_adagc.parallel.agreement import (
    RankView,
    check_alone,
    check_unbound,
    compare,
    refuse_unknown_owners,
)
from paddle_adagc.parallel.layout import TensorLayout
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


def test_a_rank_tells_of_its_tensors(monkeypatch):
    told = []

    def gather(views, view):
        told.append(view)
        views += [view, view]

    monkeypatch.setattr(agreement.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(agreement.dist, "all_gather_object", gather)
    layout = [
        TensorLayout(key="a"),
        TensorLayout(key="zero"),
        TensorLayout(key="nan"),
        TensorLayout(key="experts.0", is_expert=True),
    ]
    keys = [tensor.key for tensor in layout]
    squared = paddle.to_tensor([4.0, 0.0, np.nan, 9.0])
    group = types.SimpleNamespace(ranks=[0, 1])
    whole = {"world": object(), "sharding": Axis(0, 2, group)}
    for topology in (
        Topology(**whole, splits_parameters=True),
        Topology(**whole),
        Topology(world=object(), splits_parameters=True),
        Topology(),
        None,
    ):
        agreement.compare_with_other_ranks(keys, layout, topology, squared)
    norms = {"a": 2.0, "experts.0": 3.0}
    dense = ("a", "zero", "nan")
    assert told == [
        RankView(norms, (0, 1), dense, has_experts=True),
        RankView(norms, has_experts=True),
        RankView(norms, has_experts=True),
    ]
    agreement.compare_with_other_ranks(
        keys[:3], layout[:3], Topology(**whole), squared[:3]
    )
    assert told[-1] == RankView({"a": 2.0})


class Answers:
    """The other ranks' reasons for not using the kernels; counts the asks."""

    def __init__(self, monkeypatch, mine, others):
        self.asked, self.left = [], []
        for name, fake in {
            "get_world_size": lambda: 1 + len(others),
            "get_rank": lambda: 0,
            "is_initialized": lambda: True,
            "all_gather_object": self.gather,
        }.items():
            monkeypatch.setattr(agreement.dist, name, fake)
        monkeypatch.setattr(runtime, "current_device", lambda: 3)
        monkeypatch.setattr(runtime, "why_not", {3: mine}.__getitem__)
        monkeypatch.setattr(
            runtime, "leave_to_operators", lambda *a: self.left.append(a)
        )
        self._others = others

    def gather(self, reasons, mine):
        self.asked.append(mine)
        reasons += [mine, *self._others]


@pytest.mark.parametrize(
    ("mine", "others", "left"),
    [
        ("", ["", ""], []),
        ("", ["", "no NVRTC"], [(3, "rank 2: no NVRTC")]),
        ("", ["no driver", "no NVRTC"], [(3, "rank 1: no driver")]),
        ("no driver", ["", ""], []),
        ("no driver", ["no driver", "no driver"], []),
    ],
)
def test_all_ranks_use_the_kernels_or_none(
    monkeypatch, caplog, mine, others, left
):
    answers = Answers(monkeypatch, mine, others)
    agreement.agree_on_kernels(Topology(world=object()))
    assert (answers.asked, answers.left) == ([mine], left)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(left)
    for message, (_, why) in zip(said, left, strict=True):
        assert f"of 3 ranks cannot use the CUDA kernels ({why})" in message


@pytest.mark.parametrize("mine", ["", "no NVRTC"])
@pytest.mark.parametrize("topology", [None, Topology()])
def test_without_fleet_a_rank_says_what_it_lacks(
    monkeypatch, caplog, topology, mine
):
    answers = Answers(monkeypatch, mine, [""])
    agreement.agree_on_kernels(topology)
    assert (answers.asked, answers.left) == ([], [])
    said = "rank 0 uses Paddle's operators (no NVRTC)"
    assert (said in caplog.text) == bool(mine) == bool(caplog.records)


def test_one_process_and_other_devices_ask_nobody(monkeypatch, caplog):
    answers = Answers(monkeypatch, "no NVRTC", [])
    agreement.agree_on_kernels(Topology(world=object()))
    answers = Answers(monkeypatch, "no NVRTC", [""])
    monkeypatch.setattr(runtime, "current_device", lambda: None)
    agreement.agree_on_kernels(Topology(world=object()))
    assert answers.asked == []
    assert not caplog.records


def step_with_kernels(lacks):
    """Launches, gradients and complaints of two clips, on a rank."""
    start_fleet(dp=2)
    records = []
    agreement.logger.addFilter(records.append)
    rank = paddle.distributed.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        cuda = backends.use_cuda(patch)
        if rank in lacks:
            runtime.leave_to_operators(0, "NVRTC was not found")
        model = Model()
        rows = np.random.default_rng(0).normal(size=[5, 2, 2])
        clipped = []
        for _ in range(2):
            clip = ClipGradByAdaGC(t_start=1)
            clip.bind(model)
            clipped += [
                clip_arrays(clip, model.parameters(), [row]) for row in rows
            ]
        launches = cuda.emulated_calls(b"cuLaunchKernel")
    return launches, clipped, [record.getMessage() for record in records]


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [[], [1]])
def test_ranks_with_different_kernels_take_the_operators(lacks):
    first, second = run_on_ranks(step_with_kernels, 2, lacks=lacks)
    assert (first[0] > 0) == (second[0] > 0) == (not lacks)
    np.testing.assert_array_equal(first[1], second[1])
    said = "1 of 2 ranks cannot use the CUDA kernels (rank 1: NVRTC was not"
    assert [text[: len(said)] for text in first[2]] == [said] * len(lacks)
    assert second[2] == []


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


@pytest.mark.slow
def test_missing_hooks_of_sequence_parallelism_are_noticed():
    for complaint in run_on_ranks(follow_sequence_parallel, 2):
        assert "norm of 'norm.weight'" in complaint


class SplitSequence(paddle.nn.Layer):
    """A norm of this rank's half of the sequence."""

    def __init__(self):
        super().__init__()
        self.norm = paddle.nn.LayerNorm(4)

    def forward(self, x):
        """Split and norm ``[2 n, 4]``."""
        return self.norm(ScatterOp.apply(x))


def follow_sequence_parallel():
    """The clip's complaint about a norm without fleet's hooks."""
    start_fleet(mp=2)
    paddle.seed(0)
    bare = SplitSequence()
    clip = ClipGradByAdaGC(t_start=T_START)
    clip.bind(bare)
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=bare.parameters(), grad_clip=clip
    )
    model = fleet.distributed_model(bare)
    optimizer = fleet.distributed_optimizer(optimizer)
    draw = np.random.default_rng(0)
    try:
        for _ in range(T_START + 1):
            x = paddle.to_tensor(draw.normal(size=[6, 4]), "float32")
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.clear_grad()
    except RuntimeError as error:
        return str(error)
    return ""


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
def test_experts_without_fleet_are_refused(monkeypatch, is_bound):
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 2)
    model = paddle.nn.Linear(1, 1)
    model.weight.no_sync = True
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(model)
    message = r"fleet\.init" if is_bound else r"clip\.bind"
    with pytest.raises(RuntimeError, match=message):
        clip_arrays(clip, [model.weight], [np.ones([1, 1])])
