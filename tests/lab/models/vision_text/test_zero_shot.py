# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Zero-shot classes and retrieval, on a hand-made space and on drawings."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.model import CLIP
from paddle_adagc.lab.models.vision_text.zero_shot import (
    class_embeddings,
    retrieval_accuracy,
    zero_shot_accuracy,
)

ANGLES = np.deg2rad([0.0, 10.0, 90.0, 100.0, 180.0, 45.0])


class Compass(CLIP):
    """Tokens and images are numbers of directions in a plane."""

    def __init__(self):
        super().__init__(CLIPConfig(vision_layers=1, text_layers=1))
        self.directions = paddle.to_tensor(
            np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1), "float32"
        )

    def encode_image(self, pixel_values):
        assert not self.training
        return self.directions[pixel_values.astype("int64").reshape([-1])]

    def encode_text(self, input_ids):
        return self.directions[input_ids[:, 0]]


def images(*numbers):
    return np.array(numbers, np.float32)


def captions(*numbers):
    return np.array([[number] for number in numbers])


def test_a_class_is_the_mean_of_its_captions():
    means = class_embeddings(Compass(), [captions(0, 2), captions(4)])
    np.testing.assert_allclose(
        means.numpy(), [[0.5**0.5, 0.5**0.5], [-1.0, 0.0]], atol=1e-6
    )
    with pytest.raises(ValueError, match="at least one"):
        class_embeddings(Compass(), [captions(0), captions()[:0]])


def test_accuracy_counts_the_nearest_classes():
    model = Compass()
    model.train()
    classes = [captions(0), captions(2), captions(4)]
    batches = [(images(1, 3), np.array([0, 1])), (images(3, 0), [2, 1])]
    assert zero_shot_accuracy(model, batches, classes) == 0.5
    assert zero_shot_accuracy(model, batches, classes, top_k=2) == 1.0
    assert model.training
    with pytest.raises(ValueError, match="top_k=4 of 3 classes"):
        zero_shot_accuracy(model, batches, classes, top_k=4)
    with pytest.raises(ValueError, match="no images"):
        zero_shot_accuracy(model, [], classes)


def test_retrieval_counts_equal_captions_as_right():
    model = Compass()
    batches = [
        (images(0, 1), captions(0, 0)),  # both nearest to caption 0
        (images(2, 4), captions(4, 4)),  # nearest: 5 and 4
        (images(5), captions(5)),
    ]
    assert retrieval_accuracy(model, batches) == 4 / 5
    with pytest.raises(ValueError, match="no images"):
        retrieval_accuracy(model, [])
