# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Retrieval, on a hand-made space."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.model import CLIP
from paddle_adagc.lab.models.vision_text.retrieval import retrieval_accuracy

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


def test_retrieval_counts_equal_captions_as_right():
    model = Compass()
    model.train()
    batches = [
        (images(0, 1), captions(0, 0)),  # both nearest to caption 0
        (images(2, 4), captions(4, 4)),  # nearest: 5 and 4
        (images(5), captions(5)),
    ]
    assert retrieval_accuracy(model, batches) == 4 / 5
    assert model.training
    with pytest.raises(ValueError, match="no images"):
        retrieval_accuracy(model, [])
