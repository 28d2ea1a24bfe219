# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kinds of layouts that the recipes use, on real ranks of their proxies."""

from pathlib import Path

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.run import run_pretraining

PROXIES = Path(__file__).parents[3] / "configs/proxy"
NUM_STEPS = 6
SMALL = (
    "record.tensors=false",
    "record.moments=false",
    "data.seq_length=16",
    "data.validation_size=8",
    "clip.t_start=3",
    "schedule.warmup_steps=2",
    f"train.max_steps={NUM_STEPS}",
    "train.log_every=2",
    "train.visualdl=false",
)


def pretrain(proxy, overrides):
    """One process's part of a run."""
    return run_pretraining(load_config(PROXIES / proxy, overrides))


def losses(proxy, output_dir, num_ranks, *overrides):
    overrides = [*SMALL, f"train.output_dir={output_dir}", *overrides]
    if num_ranks == 1:
        pretrain(proxy, overrides)
    else:
        statuses = run_on_ranks(
            pretrain, num_ranks, proxy=proxy, overrides=overrides
        )
        assert statuses == ["finished"] * num_ranks
    record = RunRecord.load(output_dir)
    assert record.num_steps == NUM_STEPS
    return record.loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proxy", "layout"),
    [
        pytest.param(
            "llama2_1.3b/adagc.yaml", {"dp": 2}, marks=pytest.mark.long
        ),
        ("llama2_1.3b/muon_adagc.yaml", {"dp": 2}),
        ("llama2_7b/adagc.yaml", {"sharding": 2, "tp": 2}),
        pytest.param(
            "mixtral_8x1b/adagc.yaml", {"sharding": 2}, marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_layout_of_the_recipe_s_kind(tmp_path, proxy, layout):
    data_ranks = layout.get("dp", 1) * layout.get("sharding", 1)
    alone = losses(proxy, tmp_path / "alone", 1, "train.batch_size=4")
    spread = losses(
        proxy,
        tmp_path / "spread",
        data_ranks * layout.get("tp", 1),
        f"train.batch_size={4 // data_ranks}",
        "train.save_every=3",
        *(f"parallel.{key}={value}" for key, value in layout.items()),
    )
    np.testing.assert_allclose(spread, alone, rtol=1e-5)
