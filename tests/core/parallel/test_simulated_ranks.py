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
from core.parallel.simulated import WHOLE, Ranks, along, axis, check, grid, half
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.agreement import merge
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.reduce import Reducer, make_plan
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.state import ClipState, Quantity


def test_tensor_parallel_counts_replicated_tensors_once(monkeypatch):
    world = (0, 1)
    calls = check(
        monkeypatch,
        along("model"),
        [{"norm": WHOLE, "dense": WHOLE, "split": half(r, 16)} for r in world],
    )
    warm_up = [(world, 1), (world, 3)]  # the one split tensor, the scalars
    adaptive = [(world, 1)]
    assert calls[0] == calls[1] == warm_up * 6 + adaptive * 6


@pytest.mark.parametrize("name", ["data", "sep"])
def test_data_parallel_and_sep_do_not_communicate(monkeypatch, name):
    calls = check(
        monkeypatch,
        along(name),
        [{"norm": WHOLE, "dense": WHOLE} for _ in (0, 1)],
    )
    assert calls == [[], []]


@pytest.mark.parametrize("name", ["data", "sep"])
def test_tensor_parallel_with_copies(monkeypatch, name):
    """Replicated over DP or sep, split over TP: ranks 0 1 | 2 3."""
    calls = check(
        monkeypatch,
        grid("model", name),
        [
            {"norm": WHOLE, "dense": WHOLE, "split": half(r % 2, 16)}
            for r in range(4)
        ],
    )
    assert calls[3] == [((2, 3), 1), ((0, 1, 2, 3), 3)] * 6 + [((2, 3), 1)] * 6


def test_pipeline_with_a_tied_tensor_counts_it_once(monkeypatch):
    calls = check(
        monkeypatch,
        along("pipe"),
        [{"dense": WHOLE, "norm": WHOLE}, {"dense": WHOLE, "split": WHOLE}],
        tied_copies=[(1, "dense")],
    )
    assert calls == [[((0, 1), 3)] * 6] * 2


def test_owner_based_sharding_needs_no_sum_of_its_own(monkeypatch):
    """V1 and stage 2: every tensor whole at one owner; rank 1 owns two."""
    calls = check(
        monkeypatch,
        along("sharding"),
        [
            {"norm": WHOLE, "dense": None, "split": None},
            {"norm": None, "dense": WHOLE, "split": WHOLE},
        ],
    )
    assert calls == [[((0, 1), 3)] * 6] * 2


def test_rank_that_owns_nothing_takes_part(monkeypatch):
    check(
        monkeypatch,
        along("sharding", 3),
        [
            {"norm": WHOLE, "dense": None},
            {"norm": None, "dense": None},
            {"norm": None, "dense": WHOLE},
        ],
    )


def test_slices_of_uneven_size_and_ranks_without_one(monkeypatch):
    """V2: slices; "norm" lies on rank 0 alone."""
    calls = check(
        monkeypatch,
        along("sharding", 3, splits_parameters=True),
        [
            {"norm": WHOLE, "dense": slice(0, 5)},
            {"norm": None, "dense": slice(5, 20)},
            {"norm": None, "dense": slice(20, 24)},
        ],
    )
    group = (0, 1, 2)
    assert calls == [[(group, 2), (group, 3)] * 6 + [(group, 2)] * 6] * 3


def test_slices_of_tensor_parallel_parts(monkeypatch):
    """V2 x TP: first over the sharding group, then over the mp group."""
    parts = [(0, 0), (0, 1), (1, 0), (1, 1)]  # (sharding rank, mp rank)
    check(
        monkeypatch,
        grid("model", "sharding", splits_parameters=True),
        [
            {
                "norm": WHOLE if s == 0 else None,
                "dense": half(s, 24),
                "split": slice(8 * m + 4 * s, 8 * m + 4 * s + 4),
            }
            for s, m in parts
        ],
    )


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


def test_experts_on_their_own_ranks_are_counted_once(monkeypatch):
    """A different "global" norm on every EP group: NeMo Automodel 3816.

    Experts' norms averaged over ranks that own different ones: DeepSpeed 8475.
    """
    calls = check(
        monkeypatch,
        expert_topologies(2, 1),
        [
            {"dense": half(0, 24), "expert.0": WHOLE},
            {"dense": half(1, 24), "expert.1": WHOLE},
        ],
    )
    assert calls[0] == [((0, 1), 1), ((0, 1), 3)] * 6 + [((0, 1), 1)] * 6


def test_experts_sharded_over_their_own_group(monkeypatch):
    """EP2 x sharding 4: experts' slices sum over moe_sharding alone."""
    calls = check(
        monkeypatch,
        expert_topologies(2, 2),
        [
            {
                "norm": WHOLE if r == 3 else None,
                "dense": slice(6 * r, 6 * r + 6),
                f"expert.{r % 2}": half(r // 2, 12),
            }
            for r in range(4)
        ],
    )
    assert calls[1] == (
        [((0, 1, 2, 3), 2), ((1, 3), 1), ((0, 1, 2, 3), 3)] * 6
        + [((0, 1, 2, 3), 2), ((1, 3), 1)] * 6
    )


def test_experts_across_tensor_parallel_ranks_are_in_the_norm(monkeypatch):
    """Experts missing from the norm under EP x TP: Megatron-LM PR 5916."""
    check(
        monkeypatch,
        expert_topologies(2, 1, mp=2),
        [
            {"norm": WHOLE, "split": half(r, 16), f"expert.{r}": WHOLE}
            for r in (0, 1)
        ],
    )


def test_rank_that_owns_no_expert(monkeypatch):
    check(
        monkeypatch,
        expert_topologies(2, 1),
        [
            {"dense": half(0, 24), "expert.0": WHOLE, "expert.1": WHOLE},
            {"dense": half(1, 24)},
        ],
    )


def test_experts_on_the_data_parallel_axis(monkeypatch):
    """Marked ``no_sync``: each data-parallel rank holds other experts."""
    check(
        monkeypatch,
        along("data"),
        [
            {"dense": WHOLE, "expert.0": WHOLE},
            {"dense": WHOLE, "expert.1": WHOLE},
        ],
    )


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
    return ClipState(3, {}, tuple(rows), values, {}), observed


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
        (ClipState(3, {}, (), {}, {"mean": np.float32([x])}), "")
        for x in (1.0, 1.1)
    ]
    assert merge(parts[:1] * 2, mean).scalars["mean"] == [1.0]
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


def test_parameter_groups_count_the_same_steps(monkeypatch):
    assert run_groups(monkeypatch, [[[0], [1]], [[0], [1]]], 6) == [6, 6]


def test_rank_without_gradients_counts_the_same_steps(monkeypatch):
    assert run_groups(monkeypatch, [[[0, 1]], [[]]], 6) == [6, 6]


@pytest.mark.parametrize(
    "groups",
    [
        [[[0], [1]], [[0, 1], []]],
        [[[0], []], [[], [0]]],
        [[[0, 1], []], [[], []]],
    ],
)
def test_group_without_gradients_on_a_rank_is_refused(monkeypatch, groups):
    with pytest.raises(RuntimeError, match="apply_decay_param_fun"):
        run_groups(monkeypatch, groups, 6)


def on_ranks(monkeypatch, overrides, keys_of_ranks):
    """Gradients after 12 steps on two ranks, the second tensor split."""
    ranks = Ranks(monkeypatch, 2)

    def work(rank, local):
        local.topology = along("model")[rank]
        keys = keys_of_ranks[rank]
        clip, parameters = bound_clip(keys, t_start=4, overrides=overrides)
        for step in range(12):
            grads = [
                g[half(rank, g.size)] if key.endswith("mlp.weight") else g
                for key, g in zip(keys, gradients(step, keys), strict=True)
            ]
            clipped = clip_arrays(clip, parameters, grads)
        return dict(zip(keys, clipped, strict=True))

    return ranks.run(work)


def test_tensor_parallel_ranks_equal_one_process(monkeypatch):
    overrides = {"mlp": {"lambda_rel": 1.5}, "embed": None}
    keys = ["embed.weight", "0.mlp.weight", "norm"]
    got = on_ranks(monkeypatch, overrides, [keys, keys])
    monkeypatch.undo()
    clip, parameters = bound_clip(keys, t_start=4, overrides=overrides)
    for step in range(12):
        expected = clip_arrays(clip, parameters, gradients(step, keys))
    whole = dict(zip(keys, expected, strict=True))
    mlp = np.hstack([part.pop("0.mlp.weight") for part in got])
    np.testing.assert_allclose(mlp, whole.pop("0.mlp.weight"), rtol=1e-5)
    for part in got:
        for key, value in part.items():
            np.testing.assert_allclose(value, whole[key], rtol=1e-5)


def test_a_pattern_may_match_other_ranks_tensors_alone(monkeypatch):
    keys = [["embed.weight", "norm"], ["norm", "0.router.weight"]]
    on_ranks(monkeypatch, {"router": {"beta": 0.5}}, keys)
    with pytest.raises(ValueError, match="'gate' matches no tensor"):
        on_ranks(monkeypatch, {"gate": None}, keys)
