# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ranks refuse and compare, and what one does with its part of a model."""

import contextlib
import copy
import math
import pickle
import re
import threading

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.simulated import (
    READ_TOPOLOGY,
    Ranks,
    along,
    expert_topologies,
)
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.kernels import cuda
from paddle_adagc.parallel.agreement import RankView, compare
from paddle_adagc.parallel.ranks import Ranks as RanksOfAClip
from paddle_adagc.parallel.topology import Topology

T_START = 2
BIND = r"clip\.bind\(model\)"


def refuses(message):
    """Expect a RuntimeError of this message; None: no error."""
    if message is None:
        return contextlib.nullcontext()
    return pytest.raises(RuntimeError, match=message)


def views(*norms):
    return [*map(RankView, norms)]


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (views({"a": 1.0, "b": 1e-6, "c": 3.0}, {"a": 1.015, "b": 2e-3}), None),
        (views({"a": 1.0}, {}, {"a": 1.03}), r"ranks 0 and 2 .* 'a'.* 1\.03"),
        ([RankView({}, (0, 1), ("a",)), RankView({}, (2, 3), ("b",))], None),
        ([RankView({}), RankView({}, dense=("b",))], None),
    ],
)
def test_a_disagreement_is_named_and_rounding_is_none(seen, message):
    with refuses(message):
        compare(seen, 1)


@pytest.mark.parametrize(
    ("mine", "others", "message"),
    [
        ("", ["", ""], None),
        ("", ["", "no NVRTC"], r"1 of 3 ranks .*\(rank 2: no NVRTC\)"),
        ("no driver", ["", ""], r"\(rank 0: no driver\).*NATIVE=0 on all"),
        ("no driver", ["no g++", "no driver"], None),
    ],
)
def test_all_ranks_use_the_kernels_or_none(monkeypatch, mine, others, message):
    def gather(views, view):
        views += [view, *((view[0], why, "") for why in others)]

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1 + len(others))
    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(cuda, "current_device", lambda: 3)
    monkeypatch.setattr(cuda, "why_not", {3: mine}.__getitem__)
    for is_on_mesh in (False, True):
        world = None if is_on_mesh else object()
        topology = Topology(world=world)
        monkeypatch.setattr(READ_TOPOLOGY, lambda t=topology: t)
        ranks = RanksOfAClip()
        ranks.meshes = ["mesh"] * is_on_mesh
        with refuses(message):
            ranks.agree_once({"beta": 0.9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("lambda_rel", r"lambda_rel is 1\.04 on rank 0, and 3\.0 on rank 1"),
        ("restart", "warmup_start is 0 on rank 0, and 2 on rank 1"),
        ("load", "num_steps is 2 on rank 0, and 9 on rank 1"),
        ("beta", "beta is 0.99 on rank 0, and 0.5 on rank 1"),
        (None, None),
    ],
)
def test_arguments_and_steps_of_all_ranks_are_compared(
    monkeypatch, change, message
):
    """At the first step, and when a state is loaded or gathered."""

    def work(rank):
        model = paddle.nn.Linear(1, 1)
        change_here = change if rank == 1 else None
        clip = ClipGradByAdaGC(
            lambda_rel=3.0 if change_here == "lambda_rel" else 1.04
        )
        clip.bind(model)

        def step():
            clip([(model.weight, paddle.ones([1, 1]))])

        step()
        if change == "lambda_rel":
            return
        step()
        if change != "restart" or change_here:
            clip.restart_warmup()
        number = 9 if change_here == "load" else 2
        clip.set_state_dict({**clip.state_dict(), "step": number})
        step()
        if change_here == "beta":
            clip.beta = 0.5
        clip.full_state_dict()

    with refuses(message):
        Ranks(monkeypatch, along("data", 4)).run(work)


@pytest.mark.skipif(
    paddle.__version__ == "3.1.0", reason="its tensors cannot be pickled"
)
def test_groups_of_ranks_are_not_copied_with_a_clip():
    clip = ClipGradByAdaGC()
    clip.bind(paddle.nn.Linear(2, 2))
    clip._progress.reducer()._world = threading.Lock()
    for copied in (copy.deepcopy(clip), pickle.loads(pickle.dumps(clip))):
        assert copied._progress.reducer()._world is None
        assert [*copied.state_dict()["gamma"]] == ["weight", "bias"]


def dense_and_expert(number, is_marked):
    """A dense layer, and one expert of this number."""
    model = paddle.nn.Layer()
    model.dense = paddle.nn.Linear(2, 2, bias_attr=False)
    expert = paddle.nn.Linear(2, 2, bias_attr=False)
    expert.weight.expert = is_marked
    if is_marked:
        expert.weight.color = {"color": "moe_expert", "group": "of experts"}
    model.experts = paddle.nn.LayerDict({number: expert})
    return model


DATA, EXPERTS = along("data"), expert_topologies(2, 1)


@pytest.mark.parametrize(
    ("topologies", "numbers", "is_marked", "differing", "message"),
    [
        (DATA, "00", False, "none", None),
        (DATA, "00", False, "dense", "norm of 'dense.weight'"),
        (EXPERTS, "01", True, "experts", None),
        (EXPERTS, "00", True, "experts", "norm of 'experts.0.weight'"),
        (EXPERTS, "01", False, "experts", r"'experts.0.weight' and 'experts.1"),
        (EXPERTS, "00", False, "experts", "2 expert-parallel .*no rank has a"),
    ],
)
def test_ranks_are_compared_at_the_first_adaptive_step(
    monkeypatch, topologies, numbers, is_marked, differing, message
):
    """Every parameter group, each by a call of its own."""

    def work(rank):
        model = dense_and_expert(numbers[rank], is_marked)
        clip = ClipGradByAdaGC(t_start=T_START)
        clip.bind(model)
        groups = [{"params": [parameter]} for parameter in model.parameters()]
        optimizer = paddle.optimizer.SGD(parameters=groups, grad_clip=clip)
        for step in range(T_START + 3):
            for key, parameter in model.named_parameters():
                size = 1.0 + step + 0.5 * rank * key.startswith(differing)
                parameter.grad = paddle.full(parameter.shape, 0.01 * size)
            try:
                optimizer.step()
            except RuntimeError as error:
                # The first group may be updated when the second is refused.
                is_second = "norm of 'experts" in str(error)
                assert clip.num_steps == T_START + is_second
                return str(error)
        return ""

    for found in Ranks(monkeypatch, topologies).run(work):
        assert re.fullmatch(f".*{message}.*" if message else "", found)


@pytest.mark.parametrize("pattern", ["weight", "bias", "nothing"])
def test_units_may_lie_on_another_stage(monkeypatch, pattern):
    def work(rank):
        model = paddle.nn.Linear(2, 2, bias_attr=None if rank else False)
        try:
            ClipGradByAdaGC().bind(
                model, units={pattern: {"parts": ["a", "b"]}}
            )
        except ValueError as error:
            return str(error)
        return ""

    for found in Ranks(monkeypatch, along("pipe")).run(work):
        assert ("matches no" in found) == (pattern == "nothing")


@pytest.mark.parametrize(
    ("nonfinite", "calls", "count", "message"),
    [
        ("raise", ["step"], 2, "1 tensors .* step 1: weight on rank 1"),
        ("zero", ["step", "full_state_dict"], 2, "'weight'.* {0: 0, 1: 1}"),
        ("zero", ["step", "summary", "summary"], 2, "'weight'.* {0: 0, 1: 1}"),
        ("zero", ["step", "summary"] * 2, 4, r"'weight'.* {0: 0, 1: [12]}"),
    ],
)
def test_data_parallel_ranks_hear_of_one_rank_s_nan(
    monkeypatch, caplog, nonfinite, calls, count, message
):
    def work(rank):
        model = paddle.nn.Linear(1, 1)
        clip = ClipGradByAdaGC(nonfinite=nonfinite)
        clip.bind(model)
        value = math.nan if rank else 1.0
        try:
            for call in calls:
                if call == "step":
                    clip([(model.weight, paddle.full([1, 1], value))])
                else:
                    getattr(clip, call)()
        except FloatingPointError as error:
            return [str(error)]
        return []

    said = sum(Ranks(monkeypatch, along("data")).run(work), [])  # noqa: RUF017
    said = said or [record.getMessage() for record in caplog.records]
    assert len(said) == count
    for text in said:
        assert said.count(text) >= 2  # each rank says the same
        assert re.search(message, text)


COPIES, PARTS, ALONE = DATA[0], along("model")[0], Topology()
EXPERT = {"expert": True}
COLORED = {"color": {"color": "moe_expert"}}
NOT_OF_FLEET = r"1 expert tensors \(weight, .* 2 ranks.*init"


@pytest.mark.parametrize(
    ("topology", "num_ranks", "mark", "is_bound", "message"),
    [
        (PARTS, 2, {}, False, BIND),
        (COPIES, 2, {"no_sync": True}, False, BIND),
        (COPIES, 2, COLORED, False, BIND),
        (ALONE, 2, EXPERT, False, BIND),
        (ALONE, 2, EXPERT, True, NOT_OF_FLEET),
        (COPIES, 2, {}, False, None),
        (COPIES, 2, EXPERT, True, None),
        (ALONE, 2, {}, False, None),
        (ALONE, 2, {}, True, None),
        (ALONE, 1, EXPERT, True, None),
        (ALONE, 1, EXPERT, False, None),
    ],
)
def test_experts_on_ranks_without_fleet_are_refused(
    monkeypatch, topology, num_ranks, mark, is_bound, message
):
    monkeypatch.setattr(READ_TOPOLOGY, lambda: topology)
    monkeypatch.setattr(dist, "get_world_size", lambda: num_ranks)
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: None)
    monkeypatch.setattr(dist, "all_gather_object", list.append)
    model = paddle.nn.Linear(1, 1)
    for name, value in mark.items():
        setattr(model.weight, name, value)
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(model)
    gradients = [paddle.full(p.shape, 50.0) for p in model.parameters()]
    with refuses(message):
        clip([*zip(model.parameters(), gradients, strict=True)])
    are_untouched = [g.item() == 50.0 for g in gradients]
    assert are_untouched == [message is not None] * 2


def test_hybrid_parallel_run_without_bind_or_gradient_is_refused(monkeypatch):
    monkeypatch.setattr(READ_TOPOLOGY, lambda: PARTS)
    with pytest.raises(RuntimeError, match=BIND):
        clip_arrays(ClipGradByAdaGC(), make_parameters([[1]]), [None])
