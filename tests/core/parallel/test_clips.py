# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every rule of the registry in hybrid parallelism, against one process."""

import pytest
from core.parallel import training
from core.parallel.training import (
    DEEP,
    DENSE,
    HEADS,
    MOE,
    Layout,
    assert_same_run,
    on_ranks,
)

from paddle_adagc.clips.registry import CLIPS

SETTINGS = {
    "adagc": training.ADAGC,
    "agc": {"lambda_rel": 0.05},
    "zclip": {"warmup_steps": 5, "z_thres": 1.0},
    "global_adagc": training.ADAGC,
    "tensor_wise": {"share": "sqrt_size"},
    "value": {"lambda_abs": 0.5},
}
"""Arguments that let a rule clip within few steps; others: the defaults."""

PLAIN = {"none"}  # gradients are not touched
BY_FLEET = {"global_norm"}  # fleet puts its own clip in its place
NAMES = [name for name in CLIPS if name not in PLAIN | BY_FLEET]
WHOLE_TENSORS = {"agc"}  # refused where slices cut through units
WITH_SLICES = [name for name in NAMES if name not in WHOLE_TENSORS]
CASES = {
    "tp2": (Layout(mp=2), NAMES, DENSE),
    "v1 x2": (Layout(sharding=2), NAMES, DENSE),
    "v1 x2 with fuse_optimizer": (
        Layout(sharding=2, tensor_fusion=True),
        [name for name in NAMES if name != "value"],
        DENSE,
    ),
    "tp2 x v1": (Layout(mp=2, sharding=2), NAMES, DENSE),
    "v2 x2": (Layout(sharding=2, split_param=True), WITH_SLICES, DENSE),
    "tp2 x pp2": (Layout(mp=2, pp=2), NAMES, DENSE),
    "ep2": (
        Layout(ep=2, sharding=2, split_param=True),
        WITH_SLICES,
        MOE,
    ),
    "tp2 x ep2 x v2": (
        Layout(mp=2, ep=2, sharding=2, split_param=True),
        WITH_SLICES,
        MOE,
    ),
    "sep2": (Layout(sep=2), NAMES, HEADS),
    "pp4 x 2 virtual stages": (
        Layout(pp=4, virtual=2, micro_batches=8),
        NAMES,
        DEEP,
    ),
}
NUM_STEPS = 15


def arguments(name, options):
    return {
        "options": options,
        "clip_settings": {**SETTINGS.get(name, {}), "name": name},
        "num_steps": NUM_STEPS,
    }


def assert_same_runs(layout, names, options):
    runs = [arguments(name, options) for name in names]
    results = on_ranks(layout, runs, timeout=600.0)
    for run, ranks in zip(runs, results, strict=True):
        assert_same_run(ranks, training.alone(**run))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_run_is_that_of_one_process(case):
    assert_same_runs(*CASES[case])
