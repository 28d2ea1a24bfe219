# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real fleet: every layout trains as one process with the whole model."""

import functools

import pytest
from core.parallel import training
from core.parallel.training import (
    DEEP,
    DENSE,
    HEADS,
    MOE,
    SPARSE_MOE,
    Layout,
    assert_same_run,
    continued,
    on_ranks,
)
from helpers import slow_but

_DENSE = {"options": DENSE}
_MOE = {"options": MOE}
_SPARSE = {"options": SPARSE_MOE}
_HEADS = {"options": HEADS}
_MOE_HEADS = {"options": {**MOE, "num_key_value_heads": 4}}
_DEEP = {"options": DEEP}
_DEVIATION = {
    **_DENSE,
    "clip_settings": {**training.ADAGC, "lambda_dev": 2.0},
}
# Three layers on two stages are uneven ones.
CASES = {
    "tp2": (Layout(mp=2), [_DENSE, _MOE, _DEVIATION]),
    "sp with tp2": (Layout(mp=2, sequence_parallel=True), [_DENSE, _MOE]),
    "pp2": (Layout(pp=2), [_DENSE, _MOE]),
    # Paddle wants more than 2 stages, and plans other steps from 2 x pp
    # micro-batches on.
    "pp4 x 2 virtual stages": (
        Layout(pp=4, virtual=2, micro_batches=8),
        [_DEEP],
    ),
    "pp4 x 2 virtual stages, forward then backward": (
        Layout(pp=4, virtual=2, micro_batches=4),
        [_DEEP],
    ),
    "dp2": (Layout(dp=2), [_DENSE, _MOE, _SPARSE]),
    "v1 x2": (Layout(sharding=2), [_DENSE, _MOE]),
    "v1 x2 with tensor_fusion": (
        Layout(sharding=2, tensor_fusion=True, fuse_optimizer=False),
        [_DENSE],
    ),
    "v1 x2 with fuse_optimizer": (
        Layout(sharding=2, tensor_fusion=True),
        [_DENSE, _MOE, {**_DENSE, "main_grad": True}],
    ),
    "v2 x2": (
        Layout(sharding=2, split_param=True),
        [_DENSE, _MOE, {**_DENSE, "main_grad": True}],
    ),
    "sep2": (Layout(sep=2), [_HEADS]),
    "sep2 x dp2": (Layout(sep=2, dp=2), [_HEADS]),
    "tp2 x sep2": (Layout(mp=2, sep=2), [_HEADS]),
    "sep2 x v1": (Layout(sep=2, sharding=2), [_HEADS]),
    "ep2 x cp2": (
        Layout(ep=2, cp=2, sharding=2, split_param=True),
        [_MOE_HEADS],
    ),
    "ep2 x cp2 x v2": (
        Layout(ep=2, cp=2, sharding=4, split_param=True),
        [_MOE_HEADS],
    ),
    "v2 x2 with recompute": (
        Layout(sharding=2, split_param=True, recompute=True),
        [_DENSE, _MOE],
    ),
    "tp2 x dp2": (Layout(mp=2, dp=2), [_DENSE, _MOE]),
    "tp2 x pp2": (Layout(mp=2, pp=2), [_DENSE, _MOE]),
    "sp with tp2 x pp2": (
        Layout(mp=2, pp=2, sequence_parallel=True),
        [_DENSE, _MOE],
    ),
    "tp2 x v1": (Layout(mp=2, sharding=2), [_DENSE, _MOE]),
    "tp2 x v1 with fuse_optimizer": (
        Layout(mp=2, sharding=2, tensor_fusion=True),
        [_DENSE],
    ),
    "tp2 x v2": (
        Layout(mp=2, sharding=2, split_param=True),
        [_DENSE, _MOE, {**_DENSE, "main_grad": True}],
    ),
    "pp2 x v2": (Layout(pp=2, sharding=2, split_param=True), [_DENSE, _MOE]),
    "ep2": (Layout(ep=2, sharding=2, split_param=True), [_MOE, _SPARSE]),
    "ep4": (Layout(ep=4, sharding=4, split_param=True), [_MOE]),
    "ep2 x v2 x4": (
        Layout(ep=2, sharding=4, split_param=True),
        [_MOE, _SPARSE, {**_MOE, "main_grad": True}],
    ),
    "tp2 x ep2": (Layout(mp=2, ep=2), [_MOE, _SPARSE]),
    "tp2 x ep2 x v2": (
        Layout(mp=2, ep=2, sharding=2, split_param=True),
        [_MOE, _SPARSE, {**_MOE, "main_grad": True}],
    ),
    "sp with tp2 x ep4 x v2": (
        Layout(
            mp=2, ep=4, sharding=2, split_param=True, sequence_parallel=True
        ),
        [_MOE, _SPARSE],
    ),
    "pp2 x ep2": (
        Layout(pp=2, ep=2, sharding=2, split_param=True),
        [_MOE],
    ),
}

EIGHT_RANKS = {
    "tp2 x pp2 x v2": (
        Layout(mp=2, pp=2, sharding=2, split_param=True),
        [_DENSE],
    ),
    "tp2 x pp2 x v2, MoE": (
        Layout(mp=2, pp=2, sharding=2, split_param=True),
        [_MOE],
    ),
    "tp2 x ep2 x v2 x4": (
        Layout(mp=2, ep=2, sharding=4, split_param=True),
        [_MOE],
    ),
    "tp2 x ep4 x v2 x4": (
        Layout(mp=2, ep=4, sharding=4, split_param=True),
        [_MOE],
    ),
    "tp2 x pp2 x ep2 x v2": (
        Layout(mp=2, pp=2, ep=2, sharding=2, split_param=True),
        [_MOE],
    ),
}


def alone(clip_settings=training.ADAGC, **arguments):
    """The run of one process."""
    return training.alone(clip_settings=clip_settings, **arguments)


@functools.cache
def spread(case):
    """The runs of a case."""
    return on_ranks(*CASES[case])


LONG = [
    "sep2",
    "ep2",
    "pp4 x 2 virtual stages, forward then backward",
    "tp2 x ep2",
    "pp2 x ep2",
    "sep2 x dp2",
    "ep2 x cp2 x v2",
    "tp2 x dp2",
    "sp with tp2 x pp2",
    "tp2 x sep2",
    "dp2",
    "pp2",
    "pp4 x 2 virtual stages",
    "tp2 x pp2",
    "sp with tp2",
    "ep2 x cp2",
    "sep2 x v1",
    "v2 x2 with recompute",
    "v1 x2 with fuse_optimizer",
    "v1 x2 with tensor_fusion",
    "tp2 x v1",
    "tp2 x v1 with fuse_optimizer",
    "ep4",
    "sp with tp2 x ep4 x v2",
]
"""Their parts are in other cases, too."""


@pytest.mark.parametrize("case", slow_but("v2 x2", CASES, LONG))
def test_run_is_that_of_one_process(case):
    for arguments, ranks in zip(CASES[case][1], spread(case), strict=True):
        same = {k: v for k, v in arguments.items() if k != "main_grad"}
        assert_same_run(ranks, alone(**same))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", EIGHT_RANKS)
def test_run_on_eight_ranks_is_that_of_one_process(case):
    layout, runs = EIGHT_RANKS[case]
    for arguments, ranks in zip(runs, on_ranks(layout, runs), strict=True):
        assert_same_run(ranks, alone(**arguments))


def test_runs_clip_outliers_and_meet_experts_without_tokens():
    # Else the equalities above would say less.
    outliers = {s for s in range(training.NUM_STEPS) if s % 3 == 1}
    assert outliers & set(training.COMPARED_STEPS) >= {10, 13}
    gradients = alone(options=SPARSE_MOE)["clipped"].values()
    assert any(not g.any() for step in gradients for g in step.values())


@pytest.mark.slow
@pytest.mark.long
def test_state_of_tp2_x_pp2_loads_under_v2(tmp_path):
    dense = spread("tp2 x pp2")[0]
    arguments = {**_DENSE, **continued(dense[0]["state"], tmp_path)}
    (ranks,) = on_ranks(Layout(sharding=2, split_param=True), [arguments])
    assert_same_run(ranks, training.train_alone(**arguments))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "options"),
    [("pp4 x 2 virtual stages", _DEEP), ("sep2", _HEADS)],
)
def test_state_moves_there_and_back(case, options, tmp_path):
    first = spread(case)[0][0]["state"]
    arguments = {**options, **continued(first, tmp_path / "there")}
    v2 = Layout(sharding=2, split_param=True)
    (there,) = on_ranks(v2, [arguments])
    assert_same_run(there, training.train_alone(**arguments))
    arguments |= continued(there[0]["state"], tmp_path / "back")
    arguments["first_step"] = there[0]["state"]["step"]
    (back,) = on_ranks(CASES[case][0], [arguments])
    assert_same_run(back, training.train_alone(**arguments))


@pytest.mark.slow
def test_state_of_expert_parallelism_loads_in_one_process(tmp_path):
    ranks = spread("ep4")[0]
    expected = alone(options=MOE)["state"]
    arguments = {**_MOE, **continued(ranks[0]["state"], tmp_path)}
    mine = training.train_alone(**arguments)
    theirs = training.train_alone(**{**arguments, "state": expected})
    assert mine["state"]["gamma"] == pytest.approx(
        theirs["state"]["gamma"], rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.long
def test_state_of_one_process_loads_on_eight_ranks(tmp_path):
    arguments = {**_DENSE, **continued(alone(options=DENSE)["state"], tmp_path)}
    layout = Layout(mp=2, pp=2, sharding=2, split_param=True)
    (ranks,) = on_ranks(layout, [arguments])
    assert_same_run(ranks, training.train_alone(**arguments))


@pytest.mark.slow
def test_state_of_one_process_loads_on_four_ranks(tmp_path):
    arguments = {**_MOE, **continued(alone(options=MOE)["state"], tmp_path)}
    layout = Layout(ep=2, sharding=4, split_param=True)
    (ranks,) = on_ranks(layout, [arguments])
    assert_same_run(ranks, training.train_alone(**arguments))
