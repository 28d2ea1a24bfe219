# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Images to arrays, as OpenCLIP prepares them."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

MEAN = (0.48145466, 0.4578275, 0.40821073)
"""Of red, green and blue over CLIP's training images, values in [0, 1]."""

STD = (0.26862954, 0.26130258, 0.27577711)
"""Standard deviations that go with :data:`MEAN`."""

_MIN_AREA = 0.9
_MAX_RATIO = 4 / 3
_NUM_ATTEMPTS = 10
_SHIFT = np.array(MEAN, np.float32)[:, None, None]
_SCALE = np.array(STD, np.float32)[:, None, None]

Box = tuple[int, int, int, int]


def normalise(pixels: np.ndarray) -> np.ndarray:
    """Subtract CLIP's mean and divide by its deviation.

    Args:
        pixels: ``[3, height, width]``, floating, values in [0, 1].

    Returns:
        float32, same shape.
    """
    return (pixels.astype(np.float32, copy=False) - _SHIFT) / _SCALE


def decode(data: bytes) -> Image.Image:
    """Decode an image (JPEG, PNG, WebP) to RGB.

    Raises:
        ValueError: ``data`` is not an image, or is cut off.
    """
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except Exception as error:  # PIL's decoders raise nearly anything
        raise ValueError(f"no image that can be read: {error!r}") from error


def training_image(
    image: Image.Image, size: int, rng: np.random.RandomState
) -> np.ndarray:
    """Crop 90% to 100% of the image at random and resize it.

    Returns:
        float32 ``[3, size, size]``, normalised.
    """
    box = _random_box(image.width, image.height, rng)
    return _resized(image, size, box)


def validation_image(image: Image.Image, size: int) -> np.ndarray:
    """Resize the central square of the image.

    Returns:
        float32 ``[3, size, size]``, normalised.
    """
    return _resized(image, size, _central_box(image.width, image.height, 1.0))


def _random_box(width: int, height: int, rng: np.random.RandomState) -> Box:
    """Left, upper, right, lower; as torchvision's RandomResizedCrop."""
    for _ in range(_NUM_ATTEMPTS):
        area = rng.uniform(_MIN_AREA, 1.0) * width * height
        log_ratio = rng.uniform(-math.log(_MAX_RATIO), math.log(_MAX_RATIO))
        ratio = math.exp(log_ratio)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = rng.randint(0, width - w + 1)
            upper = rng.randint(0, height - h + 1)
            return left, upper, left + w, upper + h
    ratio = min(max(width / height, 1 / _MAX_RATIO), _MAX_RATIO)
    return _central_box(width, height, ratio)


def _central_box(width: int, height: int, ratio: float) -> Box:
    """Return the largest central box with a ratio of width to height."""
    w = max(1, min(width, round(height * ratio)))
    h = max(1, min(height, round(width / ratio)))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def _resized(image: Image.Image, size: int, box: Box) -> np.ndarray:
    small = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    pixels = np.asarray(small, np.float32).transpose(2, 0, 1) / 255
    return np.ascontiguousarray(normalise(pixels))
