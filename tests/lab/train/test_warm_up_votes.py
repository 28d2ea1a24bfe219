# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the check for bad warm-up steps changes in the proxies' own runs."""

import re

import numpy as np
import pytest
from adagc_lab.record.files import RunRecord
from pages import load_tool

main = load_tool("pretrain").main

PROXIES = (
    *("clip_lion", "ernie_moe", "ernie_moe_fp8", "llama_low_noise"),
    *("ernie_10b_a1.4b/adagc", "mixtral_8x1b/adagc", "qwen3_1.7b/adagc"),
    *("llama2_1.3b/adagc", "llama2_1.3b/muon_adagc", "llama2_7b/adagc"),
)
HARDLY_FED = re.compile(r"mlp\.experts\.\d+\.|logit_scale$")
"""Routed experts, of which some steps see hardly a token; and one scalar, whose
gradient is small where it changes its sign."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("proxy", PROXIES)
def test_only_norms_of_hardly_a_token_are_left_out(proxy, tmp_path):
    """No step is, nor a norm of another tensor: gamma is Algorithm 1's."""
    options = (
        "clip.name=adagc",
        "record={tensors: true}",
        "train.max_steps=100",
        "train.log_every=100",
        f"train.output_dir={tmp_path / 'run'}",
    )
    assert main([f"configs/proxy/{proxy}.yaml", *options]) == 0
    record = RunRecord.load(tmp_path / "run")
    norm, gamma = record.tensors["clipped_norm"], record.tensors["gamma"][-1]
    seen = np.where(norm > 0, norm, np.nan)
    before = record.tensors["gamma"][:-1]
    known = np.where(np.isfinite(before), before, np.nan)  # not a first norm
    factors = np.exp(np.nanmean(np.log(seen[1:] / known), 1))
    assert factors.min() > 0.85  # docs/method.md cites these
    assert factors[:11].max() < 3.3
    is_out = ~np.isclose(gamma, np.nanmin(seen, 0), rtol=1e-4)
    assert np.mean(is_out) < 0.05
    for key in np.array(record.tensor_names)[is_out]:
        assert HARDLY_FED.search(key)
    # What is left is still a low norm of the tensor.
    assert np.all(gamma < np.nanmedian(seen, 0))
