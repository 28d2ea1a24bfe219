# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Images to arrays."""

import io

import numpy as np
import pytest
from PIL import Image

from paddle_adagc.lab.data.image_text.transforms import (
    MEAN,
    STD,
    decode,
    training_image,
    validation_image,
)


def ramp(width, height):
    """Red grows to the right, green downwards, blue is 128."""
    red = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    green = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    blue = np.full((height, width), 128.0)
    pixels = np.stack([red, green, blue], -1).round().astype(np.uint8)
    return Image.fromarray(pixels)


def restored(array):
    return array.transpose(1, 2, 0) * STD + MEAN


def test_validation_takes_the_central_square():
    array = validation_image(ramp(64, 32), 16)
    assert array.shape == (3, 16, 16)
    assert array.dtype == np.float32
    pixels = restored(array)
    np.testing.assert_allclose(pixels[8, [0, -1], 0], [0.26, 0.74], atol=0.03)
    np.testing.assert_allclose(pixels[[0, -1], 8, 1], [0.03, 0.97], atol=0.03)
    np.testing.assert_allclose(pixels[..., 2], 128 / 255, atol=0.01)


@pytest.mark.parametrize("size", [(48, 40), (40, 40), (200, 10)])
def test_training_crops_most_of_the_image_at_random(size):
    image = ramp(*size)
    crops = [
        restored(training_image(image, 16, np.random.RandomState(seed)))
        for seed in range(30)
    ]
    corners = {tuple(crop[0, 0].round(3)) for crop in crops}
    same = training_image(image, 16, np.random.RandomState(3))
    np.testing.assert_allclose(restored(same), crops[3])
    spans = [crop[8, -1, 0] - crop[8, 0, 0] for crop in crops]
    if size == (200, 10):  # no crop of 3:4 to 4:3 has 90%: the central one
        assert len(corners) == 1
        assert max(spans) < 0.1
    else:
        assert len(corners) > 5
        assert min(spans) > 0.6


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_images_are_decoded_as_rgb(kind):
    file = io.BytesIO()
    Image.new("L", (8, 6), 200).save(file, kind)
    image = decode(file.getvalue())
    assert (image.mode, image.size) == ("RGB", (8, 6))
    assert abs(image.getpixel((3, 3))[1] - 200) < 3
    with pytest.raises(ValueError, match="no image that can be read"):
        decode(file.getvalue()[:-20])
