# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Records of tensor-parallel, sharding, pipeline, expert and mesh ranks."""

import math
import warnings
from types import SimpleNamespace
from unittest import mock

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
from helpers import assert_equal
from watch.training import CLIPS

from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.run.process import Process
from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.recorder import record_of
from paddle_adagc.watch.trainer import TrainerRecord, open_record

INF = float("inf")
LAYOUTS = {  # and what the bad step's gradients are multiplied by
    "dp2": (Layout(dp=2), 1000.0),
    "tp2": (Layout(mp=2), 1000.0),
    "v1 x2": (Layout(sharding=2), 1000.0),
    "v1 x2 with fuse_optimizer": (Layout(sharding=2, fusion="optimizer"), INF),
    "v2 x2": (Layout(sharding=2, split_param=True), 1000.0),
    "ep2 x v2": (Layout(ep=2, sharding=2, split_param=True), INF),
    "pp2": (Layout(pp=2), 1000.0),
    "group_sharded stage 2": (GroupSharded(stage=2), INF),
    "group_sharded stage 3": (GroupSharded(stage=3), 1000.0),
    "mesh dp2": (MeshLayout(dp=2), INF),
    "mesh tp2": (MeshLayout(mp=2), INF),
    "mesh stage 1 x2": (MeshLayout(dp=2, stage=1), 1000.0),
    "mesh stage 2 x2": (MeshLayout(dp=2, stage=2), INF),
}
FEW_STEPS, BAD_OF_FEW = 8, 5
STEPS = {1000.0: (76, 70), INF: (FEW_STEPS, BAD_OF_FEW)}
"""Their number, and the bad one: the first 64 are judged for Inf alone."""


class Training:
    """The net, and model and optimizer as the layout has them."""

    def __init__(self, layout, topology, clip=None):
        self.layout, self.topology = layout, topology
        options = UNTIED if layout.binds_wrapper else DENSE
        options = MOE if getattr(layout, "ep", 1) > 1 else options
        options = {**options, "num_hidden_layers": layout.pp}
        self.bare = model = make_net(options, layout)
        layout.spread(model)
        if hasattr(clip, "bind"):
            clip.bind(model)
        self.inner = paddle.optimizer.AdamW(
            1e-3, parameters=model.parameters(), grad_clip=clip
        )
        self.model, self.optimizer = layout.wrap(model, self.inner)
        if layout.binds_wrapper and hasattr(clip, "bind"):
            clip.bind(self.model)
        self.model.train()

    def steps(self, num_steps):
        """Go on once each step's update is made."""
        for step in range(num_steps):
            ids, labels = self.layout.rows(batch(step), self.topology)
            self.layout.backward(
                self.model, self.bare, self.optimizer, ids, labels
            )
            yield step
            self.optimizer.clear_grad()

    @paddle.no_grad()
    def ruin(self, factor):
        """Multiply the gradients of this rank."""
        for parameter in self.bare.parameters():
            slice_of_stage_3 = getattr(parameter, "bw_storage", None)
            for gradient in (gradient_of(parameter), slice_of_stage_3):
                if gradient is not None and gradient._is_initialized():
                    local_value(gradient).scale_(factor)

    def weights(self):
        """Weights and moments."""
        if hasattr(self.model, "get_all_parameters"):  # stage 3
            self.model.get_all_parameters()
        return [
            *[self.layout.whole(p) for p in self.bare.parameters()],
            *[
                local_value(tensor).numpy()
                for kind in self.inner._accumulators.values()
                for tensor in kind.values()
            ],
        ]


def skip_in_layout(layout, factor, folder):
    """Weights without the outlier's step, and with it skipped."""
    topology, (num_steps, bad) = layout.start(), STEPS[factor]

    def trained(name, is_recorded, by_run=False):
        if by_run:
            options = {"skip_above": (20, "--skip-above")}
            process = Process(options, str(folder / name), True, require=False)
            process.on_paddle(paddle)
        made = Training(layout, topology, CLIPS[name]())
        if is_recorded and not by_run:
            open_record(folder / name, made.optimizer, skip_above=20)
        for step in made.steps(num_steps):
            if step == bad and is_recorded:
                made.ruin(factor)
            if step != bad or is_recorded:
                made.optimizer.step()
        if is_recorded:
            record = record_of(made.optimizer)
            record.step()
            record.close()
            assert record.num_skipped == 1
        return made.weights()

    # Under fuse_optimizer the one that acts has no parameter of the model.
    by_run = not layout.is_fused
    return [
        (trained("ours", False), trained("ours", True)),
        (trained("global norm", False), trained("global norm", True, by_run)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_rank_of_a_layout_makes_the_step(name, tmp_path):
    """By a record of ours, or of ``adagc-run --watch``."""
    layout, factor = LAYOUTS[name]
    num_steps, bad = STEPS[factor]
    for results in run_on_ranks(
        skip_in_layout, 2, layout=layout, factor=factor, folder=tmp_path
    ):
        for plain, skipped in results:
            assert_equal(skipped, plain)
    for clip_name in ("global norm", "ours"):
        run = read_record(tmp_path / clip_name)
        assert run.step.tolist() == [*range(1, num_steps + 1)]
        skipped = np.flatnonzero(run.column("skipped") == 1)
        assert skipped == [bad]
        assert np.isfinite(run.column("loss")).all()
        assert (run.tensors("norm") > 0).all()
        assert {key.split(".")[0] for key in run.keys} <= {"model", "lm_head"}


def stop_in_layout(layout, folder):
    """Whether a checkpoint is saved at a NaN loss: sound weights, then not."""
    made = Training(layout, layout.start())
    recording, saves = TrainerRecord(stop_on="nan"), []
    recording.begin(
        SimpleNamespace(output_dir=str(folder)),
        SimpleNamespace(global_step=0),
        *(made.model, made.optimizer),
        *[lambda clip: None] * 2,
    )
    recording.record.should_stop = "the loss of step 0 is nan"
    for step in made.steps(2):
        if step and dist.get_rank():
            for moment in made.inner._accumulators["moment1"].values():
                moment.scale_(math.nan)
        made.optimizer.step()
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


COPIES, TEXT = 4, "an injected fault"


def fail_in_layout(layout, name, options, folder):
    """On rank 1 no norm can be measured in one step."""
    topology = layout.start()
    plain = Training(layout, topology, CLIPS[name]())
    for _ in plain.steps(FEW_STEPS):
        plain.optimizer.step()
    made = Training(layout, topology, CLIPS[name]())
    record = Record(
        folder, made.optimizer, made.bare, num_steps=COPIES, **options
    )
    measure, faults = GradientList.squared_norms, []

    def fail_once(gradients):
        if not faults:
            faults.append(TEXT)
            raise MemoryError(TEXT)
        return measure(gradients)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in made.steps(FEW_STEPS):
            fails = step == BAD_OF_FEW and dist.get_rank() == 1
            now = fail_once if fails else measure
            with mock.patch.object(GradientList, "squared_norms", now):
                made.optimizer.step()
            record.step()
        record.close()
    said = [str(w.message) for w in caught if "ends after" in str(w.message)]
    error = type(record.error).__name__, str(record.error), len(said)
    return plain.weights(), made.weights(), error


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", ["tp2", "v2 x2", "ep2 x v2", "pp2", "mesh tp2"]
)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("global norm", {}),
        ("global norm", {"skip_above": 1e6}),
        ("ours", {"skip_above": 1e6}),
    ],
    ids=["shadow", "skip", "skip under AdaGC"],
)
def test_the_others_do_not_wait_for_a_failed_rank(
    layout, name, options, tmp_path
):
    ranks = run_on_ranks(
        fail_in_layout,
        2,
        timeout=120,
        layout=LAYOUTS[layout][0],
        name=name,
        options=options,
        folder=tmp_path,
    )
    for rank, (plain, mine, error) in enumerate(ranks):
        assert_equal(mine, plain)
        text = (f"rank 1: {TEXT}", TEXT)[rank]
        kind = ("RuntimeError", "MemoryError")[rank]
        assert error == (kind, text, 1)
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, COPIES + 1)]
    assert (run.end["kind"], run.end["text"]) == ("rank", f"rank 1: {TEXT}")
