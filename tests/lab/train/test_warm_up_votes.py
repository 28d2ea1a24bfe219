# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the check for bad warm-up steps changes in the proxies' own runs."""

import re

import numpy as np
import pytest
from pages import load_tool

from paddle_adagc import rule
from paddle_adagc.clips import step

main = load_tool("pretrain").main

PROXIES = [
    "clip_lion",
    "ernie_10b_a1.4b/adagc",
    "ernie_moe",
    "ernie_moe_fp8",
    "llama2_1.3b/adagc",
    "llama2_1.3b/muon_adagc",
    "llama2_7b/adagc",
    "llama_low_noise",
    "mixtral_8x1b/adagc",
    "qwen3_1.7b/adagc",
]


HARDLY_FED = re.compile(r"mlp\.experts\.\d+\.|logit_scale$")
"""Routed experts, of which some steps see hardly a token; and one scalar, whose
gradient is small where it changes its sign."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("proxy", PROXIES)
def test_only_norms_of_hardly_a_token_are_left_out(
    proxy, tmp_path, monkeypatch
):
    """No step is, nor a norm of another tensor: gamma is Algorithm 1's."""
    keys, changes, norms, gammas = [], [], [], []
    decide, mean_change = step.decide, rule.mean_change
    supported_minimum = rule.supported_minimum

    def decided(settings, squared_norm, memory, names, *rest):
        keys[:] = names
        return decide(settings, squared_norm, memory, names, *rest)

    def changed(total, count, h):
        change = mean_change(total, count, h)
        changes.append(float(change))
        return change

    def voted(norm, gamma, support, change):
        gammas.append(gamma.numpy())
        norms.append(norm.numpy())
        return supported_minimum(norm, gamma, support, change)

    monkeypatch.setattr(step, "decide", decided)
    monkeypatch.setattr(rule, "mean_change", changed)
    monkeypatch.setattr(rule, "supported_minimum", voted)
    status = main(
        [
            f"configs/proxy/{proxy}.yaml",
            "clip.name=adagc",
            "train.max_steps=101",
            "train.log_every=101",
            f"train.output_dir={tmp_path / 'run'}",
        ]
    )
    assert status == 0
    factors = np.exp(changes)
    assert len(factors) == len(norms) == 100
    assert factors.min() > 0.85
    assert factors[:12].max() < 3.3
    seen = np.where(np.array(norms) > 0, norms, np.nan)
    known = np.where(np.isfinite(gammas), gammas, np.nan)  # not a first norm
    ratio = seen / known
    is_out = np.nanmin(ratio, 0) < 1 / 20
    assert np.mean(is_out) < 0.05
    for key in np.array(keys)[is_out | (np.nanmax(ratio[:12], 0) > 100)]:
        assert HARDLY_FED.search(key)
    minimum, gamma = np.nanmin(seen[:-1], 0), gammas[-1]
    np.testing.assert_array_equal(gamma[~is_out], minimum[~is_out])
    # What is left is still a low norm of the tensor.
    assert np.all(gamma < np.nanmedian(seen, 0))
