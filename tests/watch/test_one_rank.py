# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A record that fails on one rank, where the others need its sums."""

import warnings
from unittest import mock

import paddle.distributed as dist
import pytest
from core.parallel.layouts import Layout, MeshLayout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import batch
from watch.test_record import CLIPS
from watch.test_skip_layouts import assert_equal, make_in

from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.watch import Record, read_record

NUM_STEPS, BAD, COPIES = 12, 5, 4
TEXT = "an injected fault"
LAYOUTS = {
    "tp2": Layout(mp=2),
    "v1 x2": Layout(sharding=2),
    "v2 x2": Layout(sharding=2, split_param=True),
    "ep2 x v2": Layout(ep=2, sharding=2, split_param=True),
    "pp2": Layout(pp=2),
    "mesh tp2": MeshLayout(mp=2),
}


def train(layout, topology, clip, folder=None, **options):
    """Return the weights, and why the record ended.

    On rank 1 no norm can be measured in one step.
    """
    bare, model, optimizer, _ = make_in(layout, clip)
    record = folder and Record(
        folder, optimizer, bare, num_steps=COPIES, **options
    )
    measure = GradientList.squared_norms
    faults = []

    def fail_once(gradients):
        if step == BAD and not faults:
            faults.append(step)
            raise MemoryError(TEXT)
        return measure(gradients)

    for step in range(NUM_STEPS):
        ids, labels = layout.rows(batch(step), topology)
        layout.backward(model, bare, optimizer, ids, labels)
        with mock.patch.object(GradientList, "squared_norms", measure):
            if record and dist.get_rank() == 1:
                GradientList.squared_norms = fail_once
            optimizer.step()
        optimizer.clear_grad()
        if record:
            record.step()
    if record:
        record.close()
    error = record and (type(record.error).__name__, str(record.error))
    return [layout.whole(p) for p in bare.parameters()], error


def fail_in_layout(layout, name, options, folder):
    topology = layout.start()
    plain, _ = train(layout, topology, CLIPS[name]())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine, error = train(layout, topology, CLIPS[name](), folder, **options)
    said = [str(w.message) for w in caught if "ends after" in str(w.message)]
    return plain, mine, error, said


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("global norm", {}),
        ("global norm", {"skip_above": 1e6}),
        ("ours", {"skip_above": 1e6}),
    ],
    ids=["shadow", "skip", "skip under AdaGC"],
)
def test_the_others_do_not_wait(layout, name, options, tmp_path):
    ranks = run_on_ranks(
        fail_in_layout,
        2,
        timeout=120,
        layout=LAYOUTS[layout],
        name=name,
        options=options,
        folder=tmp_path,
    )
    for rank, (plain, mine, error, said) in enumerate(ranks):
        assert_equal(mine, plain)
        assert error[0] == ("RuntimeError", "MemoryError")[rank]
        assert error[1].endswith(TEXT)
        assert len(said) == 1
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, len(run.step) + 1)]
    assert len(run.step) >= COPIES
    assert (run.end["kind"], run.end["text"]) == ("rank", f"rank 1: {TEXT}")
