# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""No step of a proxy's warm-up disagrees with the others."""

import numpy as np
import pytest
from pages import load_tool

from paddle_adagc import rule

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


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("proxy", PROXIES)
def test_natural_steps_agree_with_room(proxy, tmp_path, monkeypatch):
    changes, mean_change = [], rule.mean_change
    own, supported_minimum = [], rule.supported_minimum

    def seen(norm, gamma, support, change):
        ratio = (norm / gamma).numpy()
        own.append(ratio[(ratio > 0) & np.isfinite(ratio)])
        return supported_minimum(norm, gamma, support, change)

    monkeypatch.setattr(rule, "supported_minimum", seen)

    def recorded(total, count, h):
        change = mean_change(total, count, h)
        changes.append(float(change))
        return change

    monkeypatch.setattr(rule, "mean_change", recorded)
    status = main(
        [
            f"configs/proxy/{proxy}.yaml",
            "clip.name=adagc",
            "train.max_steps=100",
            "train.log_every=100",
            f"train.output_dir={tmp_path / 'run'}",
        ]
    )
    assert status == 0
    ratio = np.exp(changes)
    assert len(ratio) == 100
    assert ratio.min() > 0.85
    assert ratio[:12].max() < 3.3
    assert len(own) == 100
    assert np.concatenate(own).min() > 1 / 20
    assert np.concatenate(own[:12]).max() < 100
