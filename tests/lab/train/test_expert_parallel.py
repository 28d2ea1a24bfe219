# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""ERNIE's recipe under EP2 x sharding V2 on real processes, over 200 steps.

Its curve is that of one process to 1e-5 until a token first goes to another
expert: two scores may tie within a rounding. From there on it may be as far
from it as another run of one process that is rounded otherwise.
"""

from pathlib import Path

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks
from lab.train.runs import losses

from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.run import run_pretraining

CONFIGS = Path(__file__).parents[3] / "configs/proxy/ernie_10b_a1.4b"
NUM_STEPS = 200
NUM_EQUAL = 45
"""Steps before the first token goes astray: 50 and 103, rounded or parallel."""

ROUNDED = (
    "{kind: gradient_scale, steps: [0], tensor: '*', magnitude: 1.0000002}"
)
LENGTH = (
    f"train.max_steps={NUM_STEPS}",
    "train.save_every=0",
    "train.visualdl=false",
    "record.tensors=false",
    "record.moments=false",
)


def pretrain(recipe, output_dir, *overrides):
    """One process's part of a run."""
    config = load_config(
        CONFIGS / f"{recipe}.yaml",
        [*LENGTH, f"train.output_dir={output_dir}", *overrides],
    )
    return run_pretraining(config)


def pretrain_in_parallel(recipe, output_dir):
    """One of two processes, each with half of the experts and of the batch."""
    return pretrain(
        recipe,
        output_dir,
        "parallel.ep=2",
        "parallel.sharding=2",
        "train.batch_size=8",
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("recipe", ["adagc", "globalgc_eps1e-15"])
def test_curve_is_that_of_one_process(recipe, tmp_path):
    parallel, alone, rounded = (
        str(tmp_path / name) for name in ("parallel", "alone", "rounded")
    )
    statuses = run_on_ranks(
        pretrain_in_parallel,
        2,
        timeout=900.0,
        recipe=recipe,
        output_dir=parallel,
    )
    assert statuses == ["finished"] * 2
    pretrain(recipe, alone)
    pretrain(recipe, rounded, f"faults=[{ROUNDED}]")
    expected = losses(alone)
    difference = np.abs(losses(parallel) / expected - 1)
    by_rounding = np.abs(losses(rounded) / expected - 1)
    assert difference[:NUM_EQUAL].max() < 1e-5
    assert difference.mean() < 3 * by_rounding.mean()
