# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the captions of images in CLIP's space."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import paddle
from paddle import Tensor

from paddle_adagc.lab.models.vision_text.model import CLIP

Array = npt.NDArray[np.generic]


def retrieval_accuracy(
    model: CLIP, batches: Iterable[tuple[Array, Array]]
) -> float:
    """Share of images whose own caption is the nearest of all captions.

    A caption that reads the same as the own one counts as right. A batch is
    images and their captions' tokens [batch, length].
    """
    images, captions = [], []
    with _evaluating(model):
        for pixel_values, input_ids in batches:
            captions.append(input_ids)
            images.append(model.encode_image(paddle.to_tensor(pixel_values)))
        if not images:
            raise ValueError("there are no images: give at least one batch")
        distinct, own = np.unique(
            np.concatenate(captions), axis=0, return_inverse=True
        )
        texts = _text_features(model, distinct, len(captions[0]))
        cosines = paddle.matmul(paddle.concat(images), texts, transpose_y=True)
    nearest = cosines.argmax(axis=-1).numpy()
    return float(np.mean(nearest == own.reshape(-1)))


def _text_features(model: CLIP, captions: Array, batch_size: int) -> Tensor:
    return paddle.concat(
        [
            model.encode_text(paddle.to_tensor(captions[i : i + batch_size]))
            for i in range(0, len(captions), batch_size)
        ]
    )


@contextmanager
def _evaluating(model: CLIP) -> Iterator[None]:
    """Evaluate without gradients, and restore the former mode."""
    was_training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        if was_training:
            model.train()
