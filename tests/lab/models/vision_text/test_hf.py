# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP against golden logits of Hugging Face's (see make_golden.py)."""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.vision_text.hf import config_from_hf, state_from_hf
from paddle_adagc.lab.models.vision_text.model import CLIP

GOLDEN = Path(__file__).parent / "golden"


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = dict(file)
    options = json.loads(str(arrays.pop("config")))
    weights = {
        key.removeprefix("weight:"): arrays.pop(key)
        for key in list(arrays)
        if key.startswith("weight:")
    }
    return options, weights, arrays


@pytest.mark.parametrize("name", ["clip_quick_gelu", "clip_gelu"])
def test_logits(name):
    options, weights, arrays = load(name)
    config = config_from_hf(options)
    model = CLIP(config)
    missing, unexpected = model.set_state_dict(state_from_hf(weights, config))
    assert not missing
    assert not unexpected
    model.eval()
    images = model.encode_image(paddle.to_tensor(arrays["pixel_values"]))
    texts = model.encode_text(paddle.to_tensor(arrays["input_ids"]))
    logits = model.logit_scale.exp() * images @ texts.T
    np.testing.assert_allclose(logits.numpy(), arrays["logits"], atol=1e-4)
    assert arrays["logits"].std() > 1


def test_end_of_text_is_the_last_token_in_old_configs():
    old, new = (
        config_from_hf(load(name)[0])
        for name in ("clip_quick_gelu", "clip_gelu")
    )
    assert (old.end_token, new.end_token) == (39, 7)
    assert (old.activation, new.activation) == ("quick_gelu", "gelu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "siglip"}, "model_type='siglip'"),
        ({"vision_config": {"hidden_act": "relu"}}, "hidden_act is 'relu'"),
        ({"vision_config": {"intermediate_size": 8}}, "intermediate_size is 8"),
    ],
)
def test_refuses_other_models(change, message):
    options, _, _ = load("clip_gelu")
    for key, value in change.items():
        old = options[key]
        options[key] = {**old, **value} if isinstance(old, dict) else value
    with pytest.raises(ValueError, match=message):
        config_from_hf(options)


def test_refuses_a_checkpoint_that_does_not_fit():
    options, weights, _ = load("clip_gelu")
    weights["surplus"] = weights.pop("logit_scale")
    with pytest.raises(ValueError, match=r"logit_scale.*surplus"):
        state_from_hf(weights, config_from_hf(options))


def test_a_config_without_its_end_has_transformers_s():
    options, _, _ = load("clip_gelu")
    text = {**options["text_config"], "vocab_size": 49408}
    del text["eos_token_id"]
    config = config_from_hf({**options, "text_config": text})
    assert config.end_token == 49407
    del text["hidden_size"]
    with pytest.raises(ValueError, match="holds no hidden_size"):
        config_from_hf({**options, "text_config": text})
