# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step that is left out on tensor-parallel, sharding, pipeline ranks."""

import numpy as np
import paddle
import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.pipeline import DecoderForCausalLMPipe
from adagc_lab.models.rank_weights import initialize_weights
from core.parallel.layouts import (
    DENSE,
    UNTIED,
    GroupSharded,
    Layout,
    MeshLayout,
    gradient_of,
)
from core.parallel.ranks import run_on_ranks
from core.parallel.training import SEED, batch
from core.record.test_record import CLIPS

from paddle_adagc.integrations.recording import open_record
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.record import read_record

LAYOUTS = {
    "tp2": Layout(mp=2),
    "v1 x2": Layout(sharding=2),
    "v2 x2": Layout(sharding=2, split_param=True),
    "pp2": Layout(pp=2),
    "group_sharded stage 2": GroupSharded(stage=2),
    "group_sharded stage 3": GroupSharded(stage=3),
    "mesh dp2": MeshLayout(dp=2),
    "mesh tp2": MeshLayout(mp=2),
    "mesh stage 1 x2": MeshLayout(dp=2, stage=1),
    "mesh stage 2 x2": MeshLayout(dp=2, stage=2),
}
NUM_STEPS, OUTLIER = 76, 70


def skip_in_layout(layout, folder):
    """Weights and moments: without the outlier's step, and with it skipped."""
    topology, found = layout.start(), []
    for name in ("global norm", "ours"):
        for folder_of_record in (None, folder / name):
            found.append(train_in(layout, topology, name, folder_of_record))
    return found


def train_in(layout, topology, clip_name, folder):
    degrees = {"tensor_parallel_degree": layout.mp if layout.is_fleet else 1}
    options = UNTIED if layout.binds_wrapper else DENSE
    options = {**options, "num_hidden_layers": layout.pp}
    config = DecoderConfig(**options, **degrees)
    kind = DecoderForCausalLMPipe if layout.pp > 1 else DecoderForCausalLM
    bare = model = kind(config)
    initialize_weights(model, config, SEED)
    layout.spread(model)
    clip = CLIPS[clip_name]()
    if hasattr(clip, "bind"):
        clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), grad_clip=clip
    )
    inner = optimizer
    model, optimizer = layout.wrap(model, optimizer)
    if layout.binds_wrapper and hasattr(clip, "bind"):
        clip.bind(model)
    model.train()
    record = folder and open_record(folder, optimizer, skip_above=20)
    for step in range(NUM_STEPS):
        ids, labels = layout.rows(batch(step), topology)
        layout.backward(model, bare, optimizer, ids, labels)
        if step == OUTLIER:
            ruin(bare)
        if record or step != OUTLIER:
            optimizer.step()
        optimizer.clear_grad()
        if record:
            record.step()
    if record:
        record.close()
        assert record.num_skipped == 1
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
def ruin(model):
    """Let the gradients of this rank be 1000 times as large."""
    for parameter in model.parameters():
        slice_of_stage_3 = getattr(parameter, "bw_storage", None)
        for gradient in (gradient_of(parameter), slice_of_stage_3):
            if gradient is not None and gradient._is_initialized():
                local_value(gradient).scale_(1000.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_rank_of_a_layout_makes_the_step(name, tmp_path):
    ranks = run_on_ranks(
        skip_in_layout, 2, layout=LAYOUTS[name], folder=tmp_path
    )
    for results in ranks:
        for plain, skipped in zip(results[::2], results[1::2], strict=True):
            assert len(plain) == len(skipped)
            for mine, theirs in zip(skipped, plain, strict=True):
                np.testing.assert_array_equal(mine, theirs)
    for clip_name in ("global norm", "ours"):
        run = read_record(tmp_path / clip_name)
        assert run.step.tolist() == [*range(NUM_STEPS)]
        assert np.flatnonzero(run.column("skipped") == 1) == [OUTLIER]
