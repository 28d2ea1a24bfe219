# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Auto-parallel on real ranks: every mesh trains as one process."""

import functools

import pytest
from core.parallel import auto_training, training
from core.parallel.auto_training import MeshLayout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import (
    DENSE,
    Layout,
    assert_same_run,
    continued,
    on_ranks,
)
from helpers import long_but

from paddle_adagc.lab.models.shards import split_axis
from paddle_adagc.state import load_state, save_state

CASES = {
    "tp2": MeshLayout(mp=2),
    "dp2": MeshLayout(dp=2),
    "stage 1 x2": MeshLayout(dp=2, stage=1),
    "stage 2 x2": MeshLayout(dp=2, stage=2),
    "tp2 x dp2": MeshLayout(mp=2, dp=2),
    "tp2 x stage 1": MeshLayout(mp=2, dp=2, stage=1),
}


def run(layout, **arguments):
    """What each rank gave back."""
    ranks = run_on_ranks(
        auto_training.train_all,
        layout.world_size,
        layout=layout,
        runs=[{"options": DENSE, **arguments}],
    )
    return [runs[0] for runs in ranks]


@functools.cache
def spread(case):
    return run(CASES[case])


def alone():
    return training.alone(options=DENSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", long_but(("tp2", "stage 2 x2", "tp2 x stage 1"), CASES)
)
def test_run_is_that_of_one_process(case):
    assert_same_run(spread(case), alone())


@pytest.mark.slow
def test_collectives_of_a_step():
    # The reshards of summands are those that AdamW would make otherwise.
    calls = spread("stage 1 x2")[0]["calls"]
    num_tensors = len(alone()["state"]["gamma"])
    assert calls == [[("reshard", [num_tensors])]] * training.NUM_STEPS


@pytest.mark.slow
def test_collectives_of_tensor_parallelism():
    calls = spread("tp2")[0]["calls"]
    names = alone()["state"]["gamma"]
    num_split = sum(split_axis(name) is not None for name in names)
    for step in calls:
        vectors = [call for call in step if call == ("reshard", [num_split])]
        assert len(vectors) == 1
        assert all(name == "reshard" for name, _ in step)


@pytest.mark.slow
def test_state_of_fleet_loads_under_auto_parallel(tmp_path):
    fleet = Layout(sharding=2, split_param=True)
    ((first, _),) = on_ranks(fleet, [{"options": DENSE}])
    arguments = continued(first["state"], tmp_path)
    mine = run(MeshLayout(mp=2), **arguments)
    assert_same_run(mine, training.train_alone(DENSE, **arguments))


@pytest.mark.slow
def test_state_of_auto_parallel_loads_under_fleet(tmp_path):
    arguments = continued(spread("tp2 x stage 1")[0]["state"], tmp_path)
    (mine,) = on_ranks(Layout(mp=2), [{"options": DENSE, **arguments}])
    assert_same_run(mine, training.train_alone(DENSE, **arguments))


@pytest.mark.slow
@pytest.mark.long
def test_checkpoint_of_one_mesh_loads_on_another(tmp_path):
    half = training.NUM_STEPS // 2
    first = run(MeshLayout(mp=2), num_steps=half, save_to=str(tmp_path))
    save_state(first[0]["state"], tmp_path)
    second = run(
        MeshLayout(dp=2, stage=1),
        first_step=half,
        num_steps=training.NUM_STEPS - half,
        state=load_state(tmp_path),
        load_from=str(tmp_path),
    )
    expected = {
        **alone(),
        "losses": alone()["losses"][half:],
        "clipped": {k: v for k, v in alone()["clipped"].items() if k >= half},
    }
    assert_same_run(second, expected)
