# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder against transformers, and Llama's export.

The golden files hold random weights of tiny models by our names
("weight:<name>"), the config as JSON ("config"), inputs, and the "logits" of
transformers 5.23 with these weights.
"""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.hf import config_from_hf, export_llama
from helpers import load_golden
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "golden"


def build(family):
    options, weights, arrays = load_golden(GOLDEN / f"{family}.npz")
    model = DecoderForCausalLM(config_from_hf(options))
    assert model.set_state_dict(weights) == ([], [])
    model.eval()
    return model, options, weights, arrays


@pytest.mark.parametrize(
    "family", ["ernie4_5_moe", "llama", "mixtral", "qwen3"]
)
def test_logits_are_those_of_transformers(family):
    model, _, _, arrays = build(family)
    expected = arrays["logits"]
    logits = model(paddle.to_tensor(arrays["input_ids"])).numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.5


def test_an_exported_llama_is_the_same_checkpoint(tmp_path):
    model, options, weights, _ = build("llama")
    assert export_llama(model, tmp_path / "out") == len(weights)
    exported = load_file(tmp_path / "out/model.safetensors")
    assert exported.keys() == weights.keys()
    for name, array in weights.items():
        is_map = array.ndim == 2 and "embed_tokens" not in name
        expected = array.T if is_map else array
        np.testing.assert_array_equal(exported[name], expected, name)
    written = json.loads((tmp_path / "out/config.json").read_text())
    again, config = config_from_hf(written), config_from_hf(options)
    for name in config.field_names():
        assert getattr(again, name) == getattr(config, name), name
