# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step that is left out on tensor-parallel, sharding, pipeline ranks."""

from types import SimpleNamespace

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.layouts import (
    DENSE,
    MOE,
    UNTIED,
    GroupSharded,
    Layout,
    MeshLayout,
    gradient_of,
)
from core.parallel.ranks import run_on_ranks
from core.parallel.stages import make_net
from core.parallel.training import batch
from watch.test_record import CLIPS

from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.run.process import Process
from paddle_adagc.watch import read_record
from paddle_adagc.watch.recorder import record_of
from paddle_adagc.watch.trainer import TrainerRecord, open_record

INF = float("inf")
LAYOUTS = {  # and what the bad step's gradients are multiplied by
    "dp2": (Layout(dp=2), 1000.0),
    "tp2": (Layout(mp=2), 1000.0),
    "v1 x2": (Layout(sharding=2), 1000.0),
    "v1 x2 with fuse_optimizer": (Layout(sharding=2, fusion="optimizer"), INF),
    "v2 x2": (Layout(sharding=2, split_param=True), 1000.0),
    "pp2": (Layout(pp=2), 1000.0),
    "group_sharded stage 2": (GroupSharded(stage=2), INF),
    "group_sharded stage 3": (GroupSharded(stage=3), 1000.0),
    "mesh dp2": (MeshLayout(dp=2), INF),
    "mesh tp2": (MeshLayout(mp=2), INF),
    "mesh stage 1 x2": (MeshLayout(dp=2, stage=1), 1000.0),
    "mesh stage 2 x2": (MeshLayout(dp=2, stage=2), INF),
}
NUM_STEPS, BAD = 76, 70  # the first 64 are not judged, but for Inf
FEW_STEPS, BAD_OF_FEW = 8, 5


def skip_in_layout(layout, factor, folder):
    """Weights and moments: without the outlier's step, and with it skipped."""
    topology, found = layout.start(), []
    for name in ("global norm", "ours"):
        for folder_of_record in (None, folder / name):
            clip = CLIPS[name]()
            found.append(
                train_in(layout, topology, clip, folder_of_record, factor)
            )
    return found


def make_in(layout, clip=None):
    """The net, and model, optimizer and its inside as the layout has them."""
    options = UNTIED if layout.binds_wrapper else DENSE
    options = MOE if getattr(layout, "ep", 1) > 1 else options
    bare = model = make_net({**options, "num_hidden_layers": layout.pp}, layout)
    layout.spread(model)
    if hasattr(clip, "bind"):
        clip.bind(model)
    inner = paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), grad_clip=clip
    )
    model, optimizer = layout.wrap(model, inner)
    if layout.binds_wrapper and hasattr(clip, "bind"):
        clip.bind(model)
    model.train()
    return bare, model, optimizer, inner


def train_in(layout, topology, clip, folder=None, factor=None):
    """Weights and moments, without the bad step or with it skipped.

    No step is bad without a factor.
    """
    num_steps = FEW_STEPS if factor in (INF, None) else NUM_STEPS
    bad = factor and (BAD_OF_FEW if factor == INF else BAD)
    bare, model, optimizer, inner = make_in(layout, clip)
    record = folder and open_record(folder, optimizer, skip_above=20)
    for step in range(num_steps):
        ids, labels = layout.rows(batch(step), topology)
        layout.backward(model, bare, optimizer, ids, labels)
        if step == bad:
            ruin(bare, factor)
        if record or step != bad:
            optimizer.step()
        optimizer.clear_grad()
        if record:
            record.step()
    if record:
        record.close()
        assert record.num_skipped == 1
    elif (watching := record_of(optimizer)) is not None:
        watching.step()
        watching.close()
    if hasattr(model, "get_all_parameters"):  # stage 3
        model.get_all_parameters()
    moments = inner._accumulators
    return [
        *[layout.whole(parameter) for parameter in bare.parameters()],
        *[
            local_value(tensor).numpy()
            for kind in moments.values()
            for tensor in kind.values()
        ],
    ]


@paddle.no_grad()
def ruin(model, factor):
    """Multiply the gradients of this rank."""
    for parameter in model.parameters():
        slice_of_stage_3 = getattr(parameter, "bw_storage", None)
        for gradient in (gradient_of(parameter), slice_of_stage_3):
            if gradient is not None and gradient._is_initialized():
                local_value(gradient).scale_(factor)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_rank_of_a_layout_makes_the_step(name, tmp_path):
    layout, factor = LAYOUTS[name]
    ranks = run_on_ranks(
        skip_in_layout, 2, layout=layout, factor=factor, folder=tmp_path
    )
    for results in ranks:
        for plain, skipped in zip(results[::2], results[1::2], strict=True):
            assert_equal(skipped, plain)
    is_short = factor == INF
    for clip_name in ("global norm", "ours"):
        run = read_record(tmp_path / clip_name)
        num_steps = FEW_STEPS if is_short else NUM_STEPS
        assert run.step.tolist() == [*range(1, num_steps + 1)]
        skipped = np.flatnonzero(run.column("skipped") == 1)
        assert skipped == [BAD_OF_FEW if is_short else BAD]


def stop_in_layout(layout, folder):
    """Whether a checkpoint is saved at a NaN loss: sound weights, then not."""
    topology = layout.start()
    bare, model, optimizer, inner = make_in(layout)
    recording, saves = TrainerRecord(stop_on="nan"), []
    recording.begin(
        SimpleNamespace(output_dir=str(folder)),
        SimpleNamespace(global_step=0),
        model,
        optimizer,
        lambda clip: None,
        lambda clip: None,
    )
    recording.record.should_stop = "the loss of step 0 is nan"
    for step in range(2):
        ids, labels = layout.rows(batch(step), topology)
        layout.backward(model, bare, optimizer, ids, labels)
        if step and dist.get_rank():
            for moment in inner._accumulators["moment1"].values():
                moment.scale_(float("nan"))
        optimizer.step()
        optimizer.clear_grad()
        control = SimpleNamespace(should_training_stop=False, should_save=False)
        recording.step(control)
        saves.append(control.should_save)
    recording.close()
    return saves


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v2 x2", "group_sharded stage 3"])
def test_a_checkpoint_at_the_end_has_finite_weights(name, tmp_path):
    layout, _ = LAYOUTS[name]
    ranks = run_on_ranks(stop_in_layout, 2, layout=layout, folder=tmp_path)
    assert ranks == [[True, False]] * 2


def assert_equal(mine, theirs):
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def watch_in_layout(layout, folder):
    """Weights without a record, and as under adagc-run --watch."""
    topology = layout.start()
    plain = train_in(layout, topology, CLIPS["global norm"]())
    Process({}, str(folder), watch=True, require=False).on_paddle(paddle)
    return plain, train_in(layout, topology, CLIPS["global norm"]())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["v2 x2", "pp2", *(n for n in LAYOUTS if " stage " in n)]
)
def test_adagc_run_watches(name, tmp_path):
    layout, _ = LAYOUTS[name]
    for plain, watched in run_on_ranks(
        watch_in_layout, 2, layout=layout, folder=tmp_path
    ):
        assert_equal(watched, plain)
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, FEW_STEPS + 1)]
    assert np.isfinite(run.column("loss")).all()
    assert (run.tensors("norm") > 0).all()
    assert {key.split(".")[0] for key in run.keys} <= {"model", "lm_head"}
