# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unaveraged gradients, experts without marks and unbound clips are noticed."""

import logging
import math
import re

import numpy as np
import paddle
import pytest
from core.parallel.simulated import Ranks, along, expert_topologies
from helpers import clip_arrays

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.compared import ClipGradByTensorWiseGC
from paddle_adagc.kernels import cuda as runtime
from paddle_adagc.parallel import agreement, other_ranks
from paddle_adagc.parallel.agreement import RankView, compare
from paddle_adagc.parallel.topology import Topology

T_START = 2


SLICES = RankView({}, (0, 1), ("a", "experts.0"))


@pytest.mark.parametrize(
    "views",
    [
        [
            RankView({"a": 1.0, "noise": 1e-6, "mine": 3.0}),
            RankView({"a": 1.015, "noise": 5e-4}),
        ],
        [SLICES, RankView({}, (2, 3), ("b",))],
        [RankView({}), RankView({}, dense=("b",))],
    ],
)
def test_rounding_and_other_slices_are_no_disagreement(views):
    compare(views, 1)


def test_the_first_rank_that_disagrees_is_named():
    views = [RankView({"a": 1.0}), RankView({}), RankView({"a": 1.03})]
    with pytest.raises(RuntimeError, match=r"ranks 0 and 2 .* 'a'.* 1\.03"):
        compare(views, 1)


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


def dense_and_expert(number, is_marked):
    """A dense layer, and one expert of this number."""
    model = paddle.nn.Layer()
    model.dense = paddle.nn.Linear(2, 2, bias_attr=False)
    expert = paddle.nn.Linear(2, 2, bias_attr=False)
    expert.weight.expert = is_marked
    model.experts = paddle.nn.LayerDict({number: expert})
    return model


@pytest.mark.parametrize(
    ("topologies", "numbers", "is_marked", "differing", "message"),
    [
        (along("data"), "00", False, "", None),
        (along("data"), "00", False, "dense", "norm of 'dense.weight'"),
        (expert_topologies(2, 1), "01", True, "experts", None),
        (
            expert_topologies(2, 1),
            "00",
            True,
            "experts",
            "norm of 'experts.0.weight'",
        ),
        (
            expert_topologies(2, 1),
            "01",
            False,
            "experts",
            "'experts.0.weight' and 'experts.1.weight'",
        ),
        (
            expert_topologies(2, 1),
            "00",
            False,
            "experts",
            r"2 expert-parallel .*no rank has a tensor with an .*moe_expert",
        ),
    ],
)
def test_ranks_are_compared_at_the_first_adaptive_step(
    monkeypatch, topologies, numbers, is_marked, differing, message
):
    def work(rank):
        model = dense_and_expert(numbers[rank], is_marked)
        clip = ClipGradByAdaGC(t_start=T_START)
        clip.bind(model)
        for step in range(T_START + 3):
            pairs = []
            for key, parameter in model.named_parameters():
                differs = differing and key.startswith(differing)
                size = 1.0 + step + 0.5 * rank * bool(differs)
                gradient = paddle.full(parameter.shape, 0.01 * size)
                pairs.append((parameter, gradient))
            try:
                clip(pairs)
            except RuntimeError as error:
                assert clip.num_steps == T_START
                return str(error)
        return None

    for found in Ranks(monkeypatch, topologies).run(work):
        assert (found is None) == (message is None), found
        if message is not None:
            assert re.search(message, found)


@pytest.mark.parametrize(
    ("nonfinite", "calls", "message"),
    [
        ("raise", [], "1 tensors .* step 0: weight on rank 1"),
        ("zero", ["full_state_dict"], "'weight'.* {0: 0, 1: 1}"),
        ("zero", ["summary", "summary"], "'weight'.* {0: 0, 1: 1}"),
    ],
)
def test_data_parallel_ranks_hear_of_one_rank_s_nan(
    monkeypatch, caplog, nonfinite, calls, message
):
    def work(rank):
        model = paddle.nn.Linear(1, 1)
        clip = ClipGradByAdaGC(nonfinite=nonfinite)
        clip.bind(model)
        grad = paddle.full([1, 1], math.nan if rank else 1.0)
        try:
            clip([(model.weight, grad)])
        except FloatingPointError as error:
            return [str(error)]
        for call in calls:
            getattr(clip, call)()
        return []

    said = sum(Ranks(monkeypatch, along("data")).run(work), [])  # noqa: RUF017
    first, second = said or map(logging.LogRecord.getMessage, caplog.records)
    assert first == second
    assert re.search(message, first)
