# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unaveraged gradients, experts without marks and unbound clips are noticed."""

import math
import re

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from helpers import clip_arrays

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.compared import ClipGradByTensorWiseGC
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.parallel import agreement, other_ranks
from paddle_adagc.parallel.agreement import RankView, compare
from paddle_adagc.parallel.topology import Topology

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
    for topology in (None, Topology()):  # nothing tells which ranks take part
        agreement.agree_on_kernels(topology)
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
        other_ranks, "compare_with_other_ranks", compare_with_other_ranks
    )
    model = paddle.nn.Linear(1, 1)
    clip = make()
    clip.bind(model)
    for size in range(1, 6):
        grads = [np.full([1, 1], size), np.zeros(1)]
        clip_arrays(clip, model.parameters(), grads)
    assert compared == [(["weight", "bias"], [(step + 1.0) ** 2, 0.0])]


class Model(paddle.nn.Layer):
    """A dense layer, and one expert under the name that it is given."""

    def __init__(self, expert=None, group=None):
        super().__init__()
        self.dense = paddle.nn.Linear(2, 2, bias_attr=False)
        if expert is None:
            return
        layer = paddle.nn.Linear(2, 2, bias_attr=False)
        self.experts = paddle.nn.LayerDict({expert: layer})
        if group is not None:
            layer.weight.expert = layer.weight.no_sync = True
            layer.weight.color = {"color": "moe_expert", "group": group}


def complaint(model, dense_differs=False):
    """What the clip says against it in the first adaptive step, if anything."""
    rank = paddle.distributed.get_rank()
    clip = ClipGradByAdaGC(t_start=T_START)
    clip.bind(model)
    for step in range(T_START + 3):
        pairs = []
        for key, parameter in model.named_parameters():
            differs = dense_differs or not key.startswith("dense")
            size = 1.0 + step + (0.5 * rank if differs else 0.0)
            gradient = paddle.full(parameter.shape, 0.01 * size)
            pairs.append((parameter, gradient))
        try:
            clip(pairs)
        except RuntimeError as error:
            assert clip.num_steps == T_START
            return str(error)
    return ""


def complaints_of_data_parallel():
    start_fleet(dp=2)
    return [complaint(Model(), differs) for differs in (False, True)]


def complaints_of_experts():
    hcg = start_fleet(ep=2, sharding=2, sharding_configs={"split_param": True})
    number = str(hcg.get_expert_parallel_rank())
    group = hcg.get_moe_sharding_parallel_group()
    made = [(number, group), ("0", group), (number, None), ("0", None)]
    return [complaint(Model(*arguments)) for arguments in made]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (complaints_of_data_parallel, ["^$", "norm of 'dense.weight'"]),
        (
            complaints_of_experts,
            [
                "^$",
                "norm of 'experts.0.weight'",
                "'experts.0.weight' and 'experts.1.weight'",
                "no rank has a tensor with an",
            ],
        ),
    ],
)
def test_ranks_are_compared_at_the_first_adaptive_step(function, expected):
    for found in run_on_ranks(function, 2):
        for text, pattern in zip(found, expected, strict=True):
            assert re.search(pattern, text)


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
