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
from core.named_tensors import bound_clip
from core.named_tensors import gradients as named_gradients
from core.parallel.simulated import Ranks, along, expert_topologies, grid
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.agreement import merge
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.units import Units
from paddle_adagc.state import ClipState

SHAPES = {
    **{"norm": 6, "dense": 24, "split": 16},
    **{"expert.0": 12, "expert.1": 12, "stack": 24, "fused": 24},
}
STEPS = 12
ARGUMENTS = {"t_start": 6, "lambda_abs": 2.0}
WHOLE = slice(None)


def half(rank, size):
    return slice(rank * size // 2, (rank + 1) * size // 2)


def columns(*chosen):
    """Values of some columns of a matrix of six, in row-major order."""
    return np.arange(24).reshape(4, 6)[:, chosen].reshape(-1)


def units_of(case, key, where):
    """Units in a rank's part: experts of a stack, q and k in one matrix."""
    if key == "fused":
        width = 6 if where is WHOLE else 3
        return Units(parts={"q": 2, "k": 1}).of(key, (4, width))
    if key == "stack":
        shape, first = (4, 6), 0
        if case == EP_STACKS:
            shape, first = (2, 6), where.start // 12 * 2
        return Units(experts=True).of(key, shape, first)
    return ()


PAIR, GRID = (0, 1), (0, 1, 2, 3)
TIED = "pp2, a tied tensor counts once"
PARTS = "ep2, each rank holds a part of every expert"
EP_STACKS = "ep2 x V2: stacks of experts, slices that cut through them"
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
    "tp2, each rank has columns of q and of k": (
        along("model"),
        [{"fused": columns(0, 1, 4)}, {"fused": columns(2, 3, 5)}],
        dict.fromkeys(PAIR, ([(PAIR, 2), (PAIR, 3)], [(PAIR, 2)])),
    ),
    "dp2": (along("data"), [DENSE, DENSE], dict.fromkeys(PAIR, ([], []))),
    **{
        f"tp2 x {name}2": (
            grid("model", name),
            [{**DENSE, "split": half(r % 2, 16)} for r in range(4)],
            {3: ([((2, 3), 1), (GRID, 3)], [((2, 3), 1)])},
        )
        for name in ("data", "sep")
    },
    TIED: (
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
    "V2, uneven slices and ranks without one": (
        along("sharding", 3, splits_parameters=True),
        [
            {"norm": WHOLE, "dense": slice(0, 5)},
            {"norm": None, "dense": slice(5, 20)},
            {"norm": None, "dense": slice(20, 24)},
        ],
        {1: ([((0, 1, 2), 2), ((0, 1, 2), 3)], [((0, 1, 2), 2)])},
    ),
    "V2, slices that cut through units": (
        along("sharding", splits_parameters=True),
        [
            {"norm": WHOLE, "stack": slice(0, 10)},
            {"norm": None, "stack": slice(10, 24)},
        ],
        {},
    ),
    "Muon's sharding: matrices whole with an owner, vectors cut": (
        along("sharding", splits_parameters=True),
        [
            {"norm": half(0, 6), "stack": WHOLE, "dense": None},
            {"norm": half(1, 6), "stack": None, "dense": WHOLE},
        ],
        {1: ([(PAIR, 6), (PAIR, 3)], [(PAIR, 6)])},
    ),
    # A different "global" norm on every EP group: NeMo Automodel 3816. Experts'
    # norms averaged over ranks that own different ones: DeepSpeed 8475.
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
    EP_STACKS: (
        expert_topologies(2, 2),
        [
            {
                "dense": slice(6 * r, 6 * r + 6),
                "stack": slice(*((0, 7), (12, 20), (7, 12), (20, 24))[r]),
            }
            for r in range(4)
        ],
        {},
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
    PARTS: (
        expert_topologies(2, 1),
        [{"dense": half(r, 24), "expert.0": half(r, 12)} for r in PAIR],
        {0: ([(PAIR, 1), (PAIR, 1), (PAIR, 3)], [(PAIR, 1), (PAIR, 1)])},
    ),
    "experts on the data-parallel axis": (  # marked ``no_sync``
        along("data"),
        [{"dense": WHOLE, f"expert.{r}": WHOLE} for r in PAIR],
        {},
    ),
}


def gradients(step):
    """Whole gradients; outliers in single tensors, an expert without tokens."""
    rng = np.random.default_rng(step)
    grads = {
        key: rng.normal(size=size).astype("float32")
        for key, size in SHAPES.items()
    }
    hit = list(SHAPES)[step % len(SHAPES)]
    grads[hit][:6] *= 1e6 if step in (0, 3) else 20  # in the warm-up
    if step in (2, 8):
        grads["expert.1"][:] = 0
    return grads


def bound_to(case, part, init):
    """A clip for a rank's part of the model, and its parameters by key."""
    layout, parameters = {}, {}
    for key, where in part.items():
        size = 1 if where is None else np.arange(SHAPES[key])[where].size
        (parameters[key],) = make_parameters([[max(size, 1)]])
        is_stack = key == "stack" and case == EP_STACKS
        layout[parameters[key].name] = TensorLayout(
            key=key,
            shape=(max(size, 1),),
            # Experts have the mark of a split tensor, too.
            is_tp_split=key.startswith(("split", "fused", "expert")),
            is_expert=key.startswith("expert") or is_stack,
            has_group=key.startswith("expert") or is_stack,
            is_unsynced=True,
            is_tied_copy=key == "dense" and case == TIED and "norm" not in part,
            is_split_over_experts=key == "expert.0" and case == PARTS,
            units=units_of(case, key, where),
        )
    clip = ClipGradByAdaGC(init=init, **ARGUMENTS)
    clip._progress.tensors.bind(layout)
    return clip, parameters


def clip_parts(case, part, init, moved_at=None):
    """Clipped gradients by step and key; gammas; the norm of the whole model.

    ``part`` has key -> values of the whole gradient that the rank's optimizer
    is given; None: it knows the tensor but is given nothing. ``moved_at`` is
    the step before which the state of all ranks goes into new clips.
    """
    clip, parameters = bound_to(case, part, init)
    given = {key: where for key, where in part.items() if where is not None}
    history = []
    for step in range(STEPS):
        if step == moved_at:
            state = clip.full_state_dict()
            clip, parameters = bound_to(case, part, init)
            clip.set_state_dict(state)
        grads = gradients(step)
        clipped = clip_arrays(
            clip,
            [parameters[key] for key in given],
            [grads[key][where] for key, where in given.items()],
        )
        history.append(dict(zip(given, clipped, strict=True)))
    norm = clip.summary(tensors=True)["global_grad_norm"]
    gamma = clip.full_state_dict()["gamma"]
    return history, {key: float(g) for key, g in gamma.items()}, norm


@pytest.mark.parametrize(
    ("init", "moved_at"), [("warmup_min", 3), ("warmup_ema", 4)]
)
@pytest.mark.parametrize("case", CASES)
def test_ranks_act_as_one_process(monkeypatch, case, init, moved_at):
    topologies, parts, expected = CASES[case]
    keys = {key: WHOLE for key in SHAPES if any(key in p for p in parts)}
    whole, gamma, norm = clip_parts("", keys, init)
    ranks = Ranks(monkeypatch, topologies)
    results = ranks.run(
        lambda rank: clip_parts(case, parts[rank], init, moved_at)
    )
    for rank, (history, its_gamma, its_norm) in enumerate(results):
        assert its_gamma == pytest.approx(gamma, rel=1e-5)
        assert its_norm == pytest.approx(norm, rel=1e-5)
        for step, clipped in enumerate(history):
            for key, array in clipped.items():
                np.testing.assert_allclose(
                    array,
                    whole[step][key][parts[rank][key]],
                    rtol=1e-5,
                    atol=1e-7,
                    err_msg=f"rank {rank}, step {step}, {key}",
                )
    for rank, (warm_up, adaptive) in expected.items():
        calls = warm_up * 6 + adaptive * 6
        assert ranks.calls[rank][: len(calls)] == calls
        of_summary = ranks.calls[rank][len(calls) :]
        assert [count for _, count in of_summary] in ([], [1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # Whether a rank's slice has a gradient in each step.
        ([[False, True]] * 2, "first gradient after the first step"),
        ([[False], [True]], r"slices of 0.stack .* have \[0, 14\] values"),
    ],
)
def test_units_in_slices_need_a_gradient_in_the_first_step(
    monkeypatch, given, message
):
    def work(rank):
        size = (10, 14)[rank]
        (parameter,) = make_parameters([[size]])
        clip = ClipGradByAdaGC()
        units = units_of("", "stack", WHOLE)
        layout = TensorLayout(key="stack", shape=(4, 6), units=units)
        clip._progress.tensors.bind({parameter.name: layout})
        for has_gradient in given[rank]:
            gradient = np.ones(size) if has_gradient else None
            clip_arrays(clip, [parameter], [gradient])

    ranks = Ranks(monkeypatch, along("sharding", splits_parameters=True))
    with pytest.raises(RuntimeError, match=message):
        ranks.run(work)


@pytest.mark.parametrize("axis", ["sharding", "pipe", "data"])
def test_totals_never_fall_and_are_those_of_all_ranks(monkeypatch, axis):
    """Though a tensor with past NaN has no gradient in some steps."""
    steps = [(1, 1), (np.nan, 1), (None, 1), (1, np.nan), (None, None), (1, 1)]

    def work(rank):
        clip, parameters = bound_clip(["norm", "embed.weight"])
        totals = []
        for row in steps:
            mine = [rank, 1 - rank] if axis == "data" else [rank]
            given = [(parameters[i], row[i]) for i in sorted(mine)]
            arrays = [
                None if x is None else np.full(p.shape, x) for p, x in given
            ]
            clip_arrays(clip, [p for p, _ in given], arrays)
            totals.append(clip.summary()["nonfinite_total"])
        return totals

    found = Ranks(monkeypatch, along(axis)).run(work)
    assert found == [[0, 1, 1, 2, 2, 2]] * 2


def test_a_pattern_may_match_other_ranks_tensors_alone(monkeypatch):
    keys = [["norm"], ["norm", "0.router.weight"]]

    def work(rank, overrides):
        clip, parameters = bound_clip(keys[rank], overrides=overrides)
        clip_arrays(clip, parameters, named_gradients(0, keys[rank]))

    ranks = Ranks(monkeypatch, along("model"))
    ranks.run(work, {"router": {"beta": 0.5}})
    with pytest.raises(ValueError, match="'gate' matches no tensor"):
        ranks.run(work, {"gate": None})


def part(observed, **rows):
    """State of a rank from key -> (gamma, support)."""
    gamma, support = np.float32([*rows.values()]).T
    return ClipState(3, {}, tuple(rows), gamma, support), observed


TWO = part("a", a=(2, 4))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            [part("", a=(9, 0)), part("ab", a=(1, 0), b=(4, 0))],
            {"a": 1, "b": 4},
        ),
        # A copy that no gradient reaches is zero in every step.
        ([TWO, part("a", a=(np.inf, 0))], {"a": 2}),
        ([TWO, part("a", a=(2.25, 4))], r"gamma of 'a': 2\.0 and 2\.25"),
        # Another rounding of a mean that decides by little.
        ([TWO, part("a", a=(2, 4.009))], {"a": 2}),
        ([TWO, part("a", a=(2, 5))], "support of 'a'"),
    ],
)
def test_merged_gammas_prefer_the_owner_s_and_notice_disagreement(
    parts, expected
):
    if isinstance(expected, str):
        with pytest.raises(RuntimeError, match=expected):
            merge(parts)
        return
    for ordered in (parts, parts[::-1]):
        state = merge(ordered)
        gammas = state.gamma.tolist()
        assert dict(zip(state.keys, gammas, strict=True)) == expected


@pytest.mark.parametrize(
    "groups",
    [
        ([[0], [1]], [[0], [1]]),
        ([[0, 1]], [[]]),
        ([[0], [1]], [[0, 1], []]),
        ([[0], []], [[], [0]]),
        ([[0, 1], []], [[], []]),
    ],
)
def test_ranks_count_the_same_steps(monkeypatch, groups):
    keys = [["norm", "embed.weight"], ["0.router.weight", "0.mlp.weight"]]

    def work(rank):
        clip, parameters = bound_clip(keys[rank], t_start=3)
        given = [[parameters[i] for i in group] for group in groups[rank]]
        idle = make_parameters([[1]] * len(given))
        optimizer = paddle.optimizer.SGD(
            parameters=[
                {"params": [*group, other]}
                for group, other in zip(given, idle, strict=True)
            ],
            grad_clip=clip,
        )
        for _ in range(6):
            for parameter in sum(given, []):  # noqa: RUF017
                parameter.grad = paddle.ones(parameter.shape)
            optimizer.step()
        return clip.num_steps

    assert Ranks(monkeypatch, along("pipe")).run(work) == [6, 6]
