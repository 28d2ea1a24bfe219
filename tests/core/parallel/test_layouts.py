# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real ranks: every layout trains as one process with the whole model."""

import functools

import paddle
import pytest
from core.parallel.layouts import CASES, DENSE, MOE, SPARSE_MOE, GroupSharded
from core.parallel.ranks import run_on_ranks
from core.parallel.training import alone, assert_same_run, continued, on_ranks
from helpers import slow_but

from paddle_adagc import ClipGradByAdaGC


@functools.cache
def spread(case):
    """The runs of a case."""
    layout, *models = CASES[case]
    return on_ranks(layout, [{"options": options} for options in models])


SHORTER = (
    *("v1 x2", "v1 x2 with fuse_optimizer", "v2 x2"),
    *("pp2 x v2", "tp2 x ep2 x v2"),
    *("mesh tp2 x stage 1", "group_sharded stage 3"),
)
"""They and the canaries of conftest.py have the parts of the other cases,
which are in the long tier."""

LONG = [case for case in CASES if case not in SHORTER]


@pytest.mark.parametrize("case", slow_but("v2 x2", CASES, LONG))
def test_run_is_that_of_one_process(case):
    for options, ranks in zip(CASES[case][1:], spread(case), strict=True):
        # One process does not need a main_grad.
        plain = {k: v for k, v in options.items() if k != "main_grad"}
        assert_same_run(ranks, alone(options=plain))


def test_some_experts_get_no_token():
    # Else the equalities above would say less.
    run = alone(options=SPARSE_MOE)
    assert run["summary"]["num_tensors"] < len(run["state"]["gamma"])


ALONE = "one process"
MODELS = {"MOE": MOE, "DENSE": DENSE}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target", "model"),
    [
        (ALONE, "ep2 x v2 x4", "MOE"),
        ("pp2 x v2", "mesh tp2", "DENSE"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("mesh tp2 x stage 1", "tp2", "DENSE"),
                ("tp2 x pp2", "v2 x2", "DENSE"),
                (ALONE, "tp2 x pp2 x v2", "DENSE"),
            )
        ),
    ],
)
def test_states_move(source, target, model, tmp_path):
    """A run goes on from a state of another layout as one process does."""
    options = MODELS[model]
    if source == ALONE:
        first = alone(options=options)
    else:
        first = spread(source)[CASES[source][1:].index(options)][0]
    arguments = {"options": options, **continued(first["state"], tmp_path)}
    expected = alone(**arguments)
    (ranks,) = on_ranks(CASES[target][0], [arguments])
    assert_same_run(ranks, expected)


def refused(stage):
    """Message of a step of a clip that is not told of the wrapper."""
    model = paddle.nn.Linear(20, 20)
    clip = ClipGradByAdaGC()
    clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=clip
    )
    model, optimizer = GroupSharded(stage=stage).wrap(model, optimizer)
    model(paddle.ones([1, 20])).sum().backward()
    with pytest.raises((RuntimeError, ValueError)) as error:
        optimizer.step()
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_clip_that_does_not_know_the_wrapper_is_refused(stage):
    for message in run_on_ranks(refused, 2, stage=stage):
        assert f"sharding stage {stage}" in message
        assert "the model that group_sharded_parallel returned" in message
