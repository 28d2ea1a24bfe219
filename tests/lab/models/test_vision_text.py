# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP against transformers' (see test_hf.py), and its loss on two ranks."""

from pathlib import Path

import numpy as np
import paddle
import pytest
from adagc_lab.models import attention
from adagc_lab.models.vision_text import (
    CLIP,
    MAX_LOGIT_SCALE,
    PRESETS,
    CLIPConfig,
    VisionTransformer,
    contrastive_loss,
    retrieval_accuracy,
)
from adagc_lab.optimizers import Lion
from helpers import load_golden
from scipy.special import log_softmax

GOLDEN = Path(__file__).parent / "golden/clip.npz"
RTOL = 1e-5


def test_loss_is_the_literal_one():
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(2, 5, 8))
    loss = contrastive_loss(
        paddle.to_tensor(images, "float32"),
        paddle.to_tensor(texts, "float32"),
        paddle.to_tensor([0.7]),
        over_ranks=False,
    )
    logits = 0.7 * images @ texts.T
    own = [np.diag(log_softmax(rows, 1)) for rows in (logits, logits.T)]
    np.testing.assert_allclose(float(loss), -np.mean(own), rtol=RTOL)


def test_logit_scale_and_its_master_weight_stay_in_their_bounds():
    model = CLIP(CLIPConfig())
    for value, expected in ((9.0, MAX_LOGIT_SCALE), (-1.0, 0.0)):
        model.logit_scale.set_value(paddle.to_tensor([value]))
        model.clamp_logit_scale()
        np.testing.assert_allclose(model.logit_scale.numpy(), [expected])
    start = paddle.nn.initializer.Constant(4.5)
    model.logit_scale = paddle.create_parameter(
        [1], "bfloat16", default_initializer=start
    )
    scale = [model.logit_scale]
    lion = Lion(0.1, parameters=scale, weight_decay=0.0, multi_precision=True)
    for _ in range(4):
        model.logit_scale.grad = paddle.to_tensor([-1.0], "bfloat16")
        lion.step()
        model.clamp_logit_scale(lion)
    (master,) = lion._master_weights.values()
    np.testing.assert_allclose(master.numpy(), MAX_LOGIT_SCALE)
    np.testing.assert_allclose(float(model.logit_scale), 4.6, atol=0.02)


def test_training_drops_patches_of_each_image_and_never_the_class_token():
    tower = VisionTransformer(CLIPConfig(patch_dropout=0.75))  # 4 of 16 stay

    def used():
        """Which positions get a gradient from one image."""
        tower.clear_gradients()
        tower(paddle.randn([1, 3, 32, 32])).sum().backward()
        return tower.positional_embedding.grad.norm(axis=1).numpy() > 0

    chosen = np.stack([used() for _ in range(9)])
    assert chosen[:, 0].all()
    assert (chosen[:, 1:].sum(axis=1) == 4).all()
    assert len({row.tobytes() for row in chosen}) > 1
    tower.eval()
    assert used().all()


class Compass(CLIP):
    """Images and captions are directions in a plane, in degrees."""

    def encode_image(self, pixel_values):
        assert not self.training
        angles = np.deg2rad(pixel_values.numpy().reshape(-1))
        points = np.stack([np.cos(angles), np.sin(angles)], 1)
        return paddle.to_tensor(points, "float32")

    encode_text = encode_image


def test_retrieval_counts_equal_captions_as_right():
    model = Compass(CLIPConfig(vision_layers=1, text_layers=1))
    model.train()
    pairs = [
        ([0, 10], [0, 0]),  # both nearest to caption 0
        ([90, 180], [180, 180]),  # nearest: 45 and 180
        ([45], [45]),
    ]
    batches = [
        (np.array(images, np.float32), np.array(captions)[:, None])
        for images, captions in pairs
    ]
    assert retrieval_accuracy(model, batches) == 4 / 5
    assert model.training


GOLDEN_CONFIG = {
    "embed_dim": 10,
    "image_size": 12,
    "patch_size": 4,
    "vision_width": 8,
    "vision_heads": 2,
    "vocab_size": 40,
    "context_length": 10,
    "text_width": 12,
    "text_heads": 3,
}
"""The golden file's model, with our names."""


@pytest.mark.parametrize("on_cpu", [True, False])
def test_logits(monkeypatch, on_cpu):
    monkeypatch.setattr(attention, "runs_on_cpu", lambda x: on_cpu)
    _, weights, arrays = load_golden(GOLDEN)
    model = CLIP(CLIPConfig(**GOLDEN_CONFIG))
    assert model.set_state_dict(weights) == ([], [])
    model.eval()
    images = model.encode_image(paddle.to_tensor(arrays["pixel_values"]))
    texts = model.encode_text(paddle.to_tensor(arrays["input_ids"]))
    logits = model.logit_scale.exp() * images @ texts.T
    np.testing.assert_allclose(logits.numpy(), arrays["logits"], atol=1e-4)
    assert arrays["logits"].std() > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": 30}, "image_size=30 is not a multiple"),
        ({"vision_heads": 5}, "vision_width=64"),
        ({"text_heads": 7}, "text_width=64"),
        ({"preset": "vit-b-32"}, "did you mean 'clip-vit-b-32'"),
    ],
)
def test_bad_options_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        CLIPConfig.from_fields(fields, PRESETS)
