# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every rule of the registry in hybrid parallelism, against one process."""

import pytest
from core.parallel import training
from core.parallel.training import (
    DEEP,
    DENSE,
    HEADS,
    LAYOUTS,
    MOE,
    assert_same_run,
    on_ranks,
)

from paddle_adagc.clips.registry import CLIPS

SETTINGS = {
    "adagc": training.ADAGC,
    "agc": {"lambda_rel": 0.05},
    "zclip": {"warmup_steps": 5, "z_thres": 1.0},
    "global_adagc": training.ADAGC,
    "value": {"lambda_abs": 0.5},
}
"""Arguments that let a rule clip within few steps; others: the defaults."""

PLAIN = {"none"}  # gradients are not touched
BY_FLEET = {"global_norm"}  # fleet puts its own clip in its place
NAMES = [name for name in CLIPS if name not in PLAIN | BY_FLEET]
WHOLE_TENSORS = {"agc"}  # refused where slices cut through units
WITH_SLICES = [name for name in NAMES if name not in WHOLE_TENSORS]
CASES = {
    "tp2": (NAMES, DENSE),
    "v1 x2": (NAMES, DENSE),
    "v1 x2 with fuse_optimizer": (
        [name for name in NAMES if name != "value"],
        DENSE,
    ),
    "tp2 x v1": (NAMES, DENSE),
    "v2 x2": (WITH_SLICES, DENSE),
    "tp2 x pp2": (NAMES, DENSE),
    "ep2": (WITH_SLICES, MOE),
    "tp2 x ep2 x v2": (WITH_SLICES, MOE),
    "sep2": (NAMES, HEADS),
    "pp4 x 2 virtual stages": (NAMES, DEEP),
}
NUM_STEPS = 15


def arguments(name, options):
    return {
        "options": options,
        "clip_settings": {**SETTINGS.get(name, {}), "name": name},
        "num_steps": NUM_STEPS,
    }


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_run_is_that_of_one_process(case):
    names, options = CASES[case]
    runs = [arguments(name, options) for name in names]
    results = on_ranks(LAYOUTS[case], runs, timeout=600.0)
    for run, ranks in zip(runs, results, strict=True):
        assert_same_run(ranks, training.alone(**run))
