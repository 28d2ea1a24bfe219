# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs that are cut: each optimizer, experts, faults."""

import numpy as np
import pytest
from adagc_lab.train.config import OPTIMIZERS, WITHOUT_MOMENTS
from helpers import slow_but
from lab.train import runs
from lab.train.runs import proxy_values, run_in, run_whole_and_cut

OPTIONS = {
    # Resets, and clips between them, before and after the checkpoint.
    "spam": ["optimizer.reset_interval=3", "optimizer.clip_start=1"],
    "adamw_agc": ["optimizer.lambda_rel=0.1"],
    "adamw_clippy": ["optimizer.lambda_abs=1e-5"],
}


def make_values(*overrides):
    return proxy_values(
        "llama_low_noise",
        "",
        "train.max_steps=8",
        "train.batch_size=4",
        "train.save_every=4",
        "train.visualdl=false",
        "data.validation_size=8",
        "schedule.warmup_steps=2",
        *overrides,
    )


@pytest.mark.parametrize("name", slow_but("muon", OPTIMIZERS))
def test_every_optimizer_trains_and_resumes(name, tmp_path):
    moments = str(name not in WITHOUT_MOMENTS).lower()
    values = make_values(
        f"optimizer.name={name}",
        f"record.moments={moments}",
        *OPTIONS.get(name, ()),
    )
    record = run_whole_and_cut(values, tmp_path, at=6)
    assert record.run["config"]["optimizer"]["name"] == name
    assert record.loss[-1] < record.loss[0]
    if moments == "true":
        first = record.tensors["moment1"]
        assert (first[-1] > 0).any()
    if name == "spam":  # at a reset the first moment is the gradient's share
        share = 0.1 * record.tensors["clipped_norm"][2]
        np.testing.assert_allclose(first[2], share, rtol=1e-5)


# With 16 tokens a step, some of the experts get none.
EXPERTS = {
    "moe_num_experts": 12,
    "moe_intermediate_size": 8,
    "moe_num_shared_experts": 1,
    "moe_correction_bias": True,
    "router_aux_loss_coef": 0.01,
}


@pytest.mark.slow
def test_experts_and_faults_resume(tmp_path):
    fault = {"kind": "random_tokens", "start": 3, "every": 2}
    changes = {"batch_size": 1, "expert_bias_rate": 0.01, "faults": [fault]}
    changes |= {"clip": {"name": "adagc"}, "model": EXPERTS}
    values = runs.make_values("", save_every=4, eval_every=6, **changes)
    whole = run_whole_and_cut(values, tmp_path)
    # 32 assignments of 16 tokens to 12 experts
    violation = whole.metrics["expert_max_violation"]
    assert (violation > 0).all()
    assert (violation <= 16 / (32 / 12) - 1).all()
    assert whole.metrics["idle_experts"].max() > 0


@pytest.mark.slow
def test_a_repeated_batch_begins_as_itself(tmp_path):
    parts = "train.gradient_accumulation_steps=2"
    calm, repeated = (
        run_in(tmp_path / name, make_values(parts, f"faults={fault}"))
        for name, fault in (
            ("calm", "[]"),
            ("repeated", "[{kind: repeated_batch, start: 3, duration: 3}]"),
        )
    )
    np.testing.assert_array_equal(calm.loss[:4], repeated.loss[:4])
    # The second and third time the batch has been learned from.
    assert repeated.loss[5] < repeated.loss[4] < repeated.loss[3]
    assert (calm.loss[4:] != repeated.loss[4:]).all()
    assert sorted(repeated.faults) == [3, 4, 5]
