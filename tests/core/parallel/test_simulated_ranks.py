# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip on simulated ranks: threads that hold slices, and sum over groups.

Every parallel layout must give what one process with the whole tensors gives.
The layouts that fleet runs on a CPU are tested on real processes too; here are
those that need a GPU, larger grids, and the bugs that others published.
"""

import numpy as np
import paddle
import pytest
from core.named_tensors import bound_clip, gradients
from core.parallel.simulated import (
    WHOLE,
    Ranks,
    along,
    axis,
    check,
    grid,
    half,
)
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.agreement import merge
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.reduce import Reducer, make_plan
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.state import ClipState, Quantity


def expert_topologies(num_expert_ranks, num_moe_sharding_ranks, mp=1):
    """EP inside of moe_sharding; dense tensors are sharded over all."""
    world = tuple(range(num_expert_ranks * num_moe_sharding_ranks))

    def among(rank, key):
        group = [other for other in world if key(other) == key(rank)]
        return axis(rank, *group) if len(group) > 1 else Axis()

    return [
        Topology(
            model=among(r, lambda o: o // mp),
            sharding=among(r, lambda o: o % mp),
            expert=among(r, lambda o: o // num_expert_ranks),
            moe_sharding=among(r, lambda o: o % num_expert_ranks),
            splits_parameters=True,
            world=world,
        )
        for r in world
    ]


PAIR, GRID = (0, 1), (0, 1, 2, 3)
DENSE = {"norm": WHOLE, "dense": WHOLE}
# Topologies; what each rank is given; and for some ranks the all-reduces
# (group, length) of a warm-up step and of an adaptive one.
CASES = {
    "tp2": (
        along("model"),
        [{**DENSE, "split": half(r, 16)} for r in PAIR],
        # The one split tensor, the scalars.
        dict.fromkeys(PAIR, ([(PAIR, 1), (PAIR, 3)], [(PAIR, 1)])),
    ),
    "dp2": (along("data"), [DENSE, DENSE], dict.fromkeys(PAIR, ([], []))),
    "sep2": (along("sep"), [DENSE, DENSE], dict.fromkeys(PAIR, ([], []))),
    **{
        f"tp2 x {name}2": (
            grid("model", name),
            [{**DENSE, "split": half(r % 2, 16)} for r in range(4)],
            {3: ([((2, 3), 1), (GRID, 3)], [((2, 3), 1)])},
        )
        for name in ("data", "sep")
    },
    "pp2, a tied tensor counts once": (
        along("pipe"),
        [DENSE, {"dense": WHOLE, "split": WHOLE}],
        dict.fromkeys(PAIR, ([(PAIR, 3)], [])),
    ),
    "V1 and stage 2: every tensor whole at one owner": (
        along("sharding"),
        [
            {"norm": WHOLE, "dense": None, "split": None},
            {"norm": None, "dense": WHOLE, "split": WHOLE},
        ],
        dict.fromkeys(PAIR, ([(PAIR, 3)], [])),
    ),
    "V1, a rank that owns nothing": (
        along("sharding", 3),
        [
            {"norm": WHOLE, "dense": None},
            {"norm": None, "dense": None},
            {"norm": None, "dense": WHOLE},
        ],
        {},
    ),
    "V2, uneven slices and ranks without one": (
        along("sharding", 3, splits_parameters=True),
        [
            {"norm": WHOLE, "dense": slice(0, 5)},
            {"norm": None, "dense": slice(5, 20)},
            {"norm": None, "dense": slice(20, 24)},
        ],
        {1: ([((0, 1, 2), 2), ((0, 1, 2), 3)], [((0, 1, 2), 2)])},
    ),
    "V2 x tp2": (
        grid("model", "sharding", splits_parameters=True),
        [
            {
                "norm": WHOLE if s == 0 else None,
                "dense": half(s, 24),
                "split": slice(8 * m + 4 * s, 8 * m + 4 * s + 4),
            }
            for s in PAIR
            for m in PAIR
        ],
        {},
    ),
    # A different "global" norm on every EP group: NeMo Automodel 3816. Experts'
    # norms averaged over ranks that own different ones: DeepSpeed 8475.
    "ep2": (
        expert_topologies(2, 1),
        [{"dense": half(r, 24), f"expert.{r}": WHOLE} for r in PAIR],
        {0: ([(PAIR, 1), (PAIR, 3)], [(PAIR, 1)])},
    ),
    "ep2 x V2: experts' slices sum over moe_sharding alone": (
        expert_topologies(2, 2),
        [
            {
                "norm": WHOLE if r == 3 else None,
                "dense": slice(6 * r, 6 * r + 6),
                f"expert.{r % 2}": half(r // 2, 12),
            }
            for r in range(4)
        ],
        {
            1: (
                [(GRID, 2), ((1, 3), 1), (GRID, 3)],
                [(GRID, 2), ((1, 3), 1)],
            )
        },
    ),
    # Experts missing from the norm under EP x TP: Megatron-LM PR 5916.
    "ep2 over tp2": (
        expert_topologies(2, 1, mp=2),
        [
            {"norm": WHOLE, "split": half(r, 16), f"expert.{r}": WHOLE}
            for r in PAIR
        ],
        {},
    ),
    "a rank that owns no expert": (
        expert_topologies(2, 1),
        [
            {"dense": half(0, 24), "expert.0": WHOLE, "expert.1": WHOLE},
            {"dense": half(1, 24)},
        ],
        {},
    ),
    "experts on the data-parallel axis": (  # marked ``no_sync``
        along("data"),
        [{"dense": WHOLE, f"expert.{r}": WHOLE} for r in PAIR],
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_act_as_one_process(monkeypatch, case):
    topologies, parts, expected = CASES[case]
    tied = [(1, "dense")] if "tied" in case else []
    calls = check(monkeypatch, topologies, parts, tied)
    for rank, (warm_up, adaptive) in expected.items():
        assert calls[rank] == warm_up * 6 + adaptive * 6


def test_a_pattern_may_match_other_ranks_tensors_alone(monkeypatch):
    ranks = Ranks(monkeypatch, 2)
    keys = [["norm"], ["norm", "0.router.weight"]]

    def work(rank, local, overrides):
        local.topology = along("model")[rank]
        clip, parameters = bound_clip(keys[rank], overrides=overrides)
        clip_arrays(clip, parameters, gradients(0, keys[rank]))

    for_router = {"router": {"beta": 0.5}}
    ranks.run(lambda *arguments: work(*arguments, for_router))
    with pytest.raises(ValueError, match="'gate' matches no tensor"):
        ranks.run(lambda *arguments: work(*arguments, {"gate": None}))


def test_every_rank_raises_if_one_gradient_is_not_finite(monkeypatch):
    ranks = Ranks(monkeypatch, 2)

    def work(rank, local):
        local.topology = along("sharding")[rank]
        (parameter,) = make_parameters([[1]])
        clip = ClipGradByAdaGC(nonfinite="raise")
        clip._table.bind({parameter.name: TensorLayout(key=f"t{rank}")})
        with pytest.raises(FloatingPointError) as error:
            clip_arrays(
                clip, [parameter], [np.array([np.nan if rank else 1.0])]
            )
        return str(error.value)

    message = "the gradient of 1 tensors is not finite at step 0: t1 on rank 1"
    assert ranks.run(work) == [message] * 2
    assert ranks.calls == [[((0, 1), 1)]] * 2  # as the docstring says


def tp_reducer(rank):
    tensors = [
        TensorLayout(key="copy"),
        TensorLayout(key="part", is_tp_split=True),
    ]
    return Reducer(make_plan(tensors, along("model")[rank]))


def test_numbers_and_flags_of_all_ranks(monkeypatch):
    def work(rank, local):
        reducer = tp_reducer(rank)
        total = reducer.sum_over_model([3.0 + rank, 5.0]).item()
        parts = reducer.sum_over_tp(paddle.to_tensor([1.0 + rank])).item()
        return (
            total,
            parts,
            reducer.any_rank(rank == 1),
            reducer.any_rank(False),
        )

    assert Ranks(monkeypatch, 2).run(work) == [(8.0, 3.0, True, False)] * 2
    copy = [TensorLayout(key="copy")]
    reducer = Reducer(make_plan(copy, along("data")[1]))
    assert reducer.sum_over_model([3.0]).item() == 3.0
    assert reducer.sum_over_tp(paddle.to_tensor([1.0])).item() == 1.0
    alone = Reducer(None)
    assert alone.sum_over_model([3.0, 5.0]).item() == 8.0
    assert (alone.any_rank(True), alone.any_rank(False)) == (True, False)


def test_values_are_gathered_where_ranks_hold_parts(monkeypatch):
    def all_gather(values, value, group):
        values.extend([value] * len(group))

    monkeypatch.setattr("paddle.distributed.all_gather_object", all_gather)
    assert tp_reducer(0).gather("x") == ["x", "x"]
    assert Reducer(None).gather("x") == ["x"]


QUANTITIES = [
    *ClipGradByAdaGC(strict=True)._quantities(),
    Quantity(name="deviation", start=0.0, tolerance=1e-2),
]


def part(observed, **rows):
    """State of a rank from key -> (gamma, deviation)."""
    values = {
        quantity.name: np.array([row[i] for row in rows.values()], np.float32)
        for i, quantity in enumerate(QUANTITIES)
    }
    return ClipState(3, {}, tuple(rows), values), observed


def gammas_of(*parts):
    state = merge(parts, QUANTITIES)
    return dict(zip(state.keys, state.values["gamma"].tolist(), strict=True))


def test_merged_gammas_prefer_the_owner_s_and_notice_disagreement():
    stale, fresh = part("", a=(9, 0)), part("ab", a=(1, 0), b=(2, 0))
    assert gammas_of(stale, fresh) == {"a": 1.0, "b": 2.0}
    assert gammas_of(fresh, stale) == {"a": 1.0, "b": 2.0}
    with pytest.raises(RuntimeError, match=r"gamma of 'a': 1\.0 and 1\.1"):
        gammas_of(fresh, part("a", a=(1.125, 0)))


def test_gamma_without_an_observation_does_not_count_as_a_disagreement():
    # A copy that no gradient reaches is zero in every step: gamma stays inf.
    seen, unused = part("a", a=(0.18, 0)), part("a", a=(np.inf, 0))
    for parts in ((seen, unused), (unused, seen)):
        assert gammas_of(*parts) == {"a": pytest.approx(0.18)}


def test_deviations_near_zero_may_differ_by_rounding_errors_of_gamma():
    first = part("a", a=(2, 0))
    assert gammas_of(first, part("a", a=(2, 1.9e-5))) == {"a": 2.0}
    for other in (2.1e-5, 1.02):
        with pytest.raises(RuntimeError, match="deviation of 'a'"):
            gammas_of(first, part("a", a=(2, other)))
    one = part("a", a=(2, 1))
    assert gammas_of(one, part("a", a=(2, 1.005))) == {"a": 2.0}
    with pytest.raises(RuntimeError, match="deviation of 'a'"):
        gammas_of(one, part("a", a=(2, 1.02)))


def test_ranks_have_to_agree_about_a_number_for_all_tensors():
    mean = [Quantity(name="mean", start=0.0, is_global=True)]
    parts = [
        (ClipState(3, {}, (), {"mean": np.array(x)}), "") for x in (1.0, 1.1)
    ]
    assert merge(parts[:1] * 2, mean).values["mean"] == 1.0
    with pytest.raises(RuntimeError, match="mean of 'global'"):
        merge(parts, mean)


def run_groups(monkeypatch, groups, num_steps):
    """Steps that each rank counted, with gradients of these tensors a call."""
    ranks = Ranks(monkeypatch, len(groups))

    def work(rank, local):
        local.topology = along("pipe")[rank]
        parameters = make_parameters([[2], [3]])
        clip = ClipGradByAdaGC(t_start=3)
        clip._table.bind(
            {
                p.name: TensorLayout(key=f"{rank}.{i}")
                for i, p in enumerate(parameters)
            }
        )
        for _ in range(num_steps):
            for group in groups[rank]:
                given = [parameters[i] for i in group]
                clip_arrays(clip, given, [np.ones(p.shape) for p in given])
        return clip.num_steps

    return ranks.run(work)


@pytest.mark.parametrize(
    ("groups", "is_refused"),
    [
        ([[[0], [1]], [[0], [1]]], False),
        ([[[0, 1]], [[]]], False),
        ([[[0], [1]], [[0, 1], []]], True),
        ([[[0], []], [[], [0]]], True),
        ([[[0, 1], []], [[], []]], True),
    ],
)
def test_ranks_count_the_same_steps_or_refuse(monkeypatch, groups, is_refused):
    if is_refused:
        with pytest.raises(RuntimeError, match="apply_decay_param_fun"):
            run_groups(monkeypatch, groups, 6)
    else:
        assert run_groups(monkeypatch, groups, 6) == [6, 6]
