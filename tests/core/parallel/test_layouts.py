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
    LAYOUTS,
    MOE,
    SPARSE_MOE,
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
_SCALED_EMBED = {"options": {**DENSE, "initialization": "scaled_embed"}}
_WESAR = {"options": {**MOE, "initialization": "wesar"}}
_MAIN_GRAD = {"main_grad": True}
# Three layers on two stages are uneven ones.
CASES = {
    "tp2": [_DENSE, _MOE, _SCALED_EMBED, _WESAR],
    "sp with tp2": [_DENSE, _MOE],
    "pp2": [_DENSE, _MOE],
    "pp4 x 2 virtual stages": [_DEEP],
    "pp4 x 2 virtual stages, forward then backward": [_DEEP],
    "dp2": [_DENSE, _MOE, _SPARSE],
    "v1 x2": [_DENSE, _MOE],
    "v1 x2 with tensor_fusion": [_DENSE],
    "v1 x2 with fuse_optimizer": [_DENSE, _MOE, {**_DENSE, **_MAIN_GRAD}],
    "v2 x2": [_DENSE, _MOE, {**_DENSE, **_MAIN_GRAD}],
    "sep2": [_HEADS],
    "tp2 x sep2": [_HEADS],
    "ep2 x cp2 x v2": [_MOE_HEADS],
    "v2 x2 with recompute": [_DENSE, _MOE],
    "tp2 x dp2": [_DENSE, _MOE],
    "tp2 x pp2": [_DENSE, _MOE],
    "sp with tp2 x pp2": [_DENSE, _MOE],
    "tp2 x v1": [_DENSE, _MOE],
    "tp2 x v2": [_DENSE, _MOE, {**_DENSE, **_MAIN_GRAD}],
    "pp2 x v2": [_DENSE, _MOE],
    "ep2": [_MOE, _SPARSE],
    "ep4": [_MOE],
    "ep2 x v2 x4": [_MOE, _SPARSE, {**_MOE, **_MAIN_GRAD}],
    "tp2 x ep2": [_MOE, _SPARSE],
    "tp2 x ep2 x v2": [_MOE, _SPARSE, {**_MOE, **_MAIN_GRAD}],
    "sp with tp2 x ep4 x v2": [_MOE, _SPARSE],
    "pp2 x ep2": [_MOE],
    # Eight ranks.
    "tp2 x pp2 x v2": [_DENSE, _MOE],
    "tp2 x ep4 x v2 x4": [_MOE],
    "tp2 x pp2 x ep2 x v2": [_MOE],
}


def alone(clip_settings=training.ADAGC, **arguments):
    """The run of one process."""
    return training.alone(clip_settings=clip_settings, **arguments)


@functools.cache
def spread(case):
    """The runs of a case."""
    return on_ranks(LAYOUTS[case], CASES[case])


SHORTER = (
    *("tp2", "v1 x2", "v2 x2", "tp2 x v2", "pp2 x v2"),
    *("ep2 x v2 x4", "tp2 x ep2 x v2"),
)
"""Their parts make up the other cases, which are in the long tier."""

LONG = [case for case in CASES if case not in SHORTER]


@pytest.mark.parametrize("case", slow_but("v2 x2", CASES, LONG))
def test_run_is_that_of_one_process(case):
    for arguments, ranks in zip(CASES[case], spread(case), strict=True):
        same = {k: v for k, v in arguments.items() if k != "main_grad"}
        assert_same_run(ranks, alone(**same))


def test_runs_clip_outliers_and_meet_experts_without_tokens():
    # Else the equalities above would say less.
    outliers = {s for s in range(training.NUM_STEPS) if s % 3 == 1}
    assert outliers & set(training.COMPARED_STEPS) >= {10, 13}
    gradients = alone(options=SPARSE_MOE)["clipped"].values()
    assert any(not g.any() for step in gradients for g in step.values())


ALONE = "one process"
MODELS = {"MOE": _MOE, "DENSE": _DENSE, "DEEP": _DEEP, "HEADS": _HEADS}
_LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target", "model"),
    [
        ("ep4", ALONE, "MOE"),
        (ALONE, "ep2 x v2 x4", "MOE"),
        pytest.param("tp2 x pp2", "v2 x2", "DENSE", marks=_LONG),
        pytest.param(ALONE, "tp2 x pp2 x v2", "DENSE", marks=_LONG),
        pytest.param("pp4 x 2 virtual stages", "v2 x2", "DEEP", marks=_LONG),
        pytest.param(ALONE, "pp4 x 2 virtual stages", "DEEP", marks=_LONG),
        pytest.param("sep2", ALONE, "HEADS", marks=_LONG),
        pytest.param("v2 x2", "sep2", "HEADS", marks=_LONG),
    ],
)
def test_states_move(source, target, model, tmp_path):
    """A run goes on from a state of another layout as one process does."""
    arguments = MODELS[model]
    if source == ALONE:
        first = alone(**arguments)
    elif arguments in CASES[source]:
        first = spread(source)[CASES[source].index(arguments)][0]
    else:
        first = on_ranks(LAYOUTS[source], [arguments])[0][0]
    arguments = {**arguments, **continued(first["state"], tmp_path)}
    expected = training.train_alone(**arguments)
    if target == ALONE:
        twin = {**arguments, "state": alone(**MODELS[model])["state"]}
        twin = training.train_alone(**twin)["state"]["gamma"]
        assert expected["state"]["gamma"] == pytest.approx(twin, rel=1e-5)
    else:
        (ranks,) = on_ranks(LAYOUTS[target], [arguments])
        assert_same_run(ranks, expected)
