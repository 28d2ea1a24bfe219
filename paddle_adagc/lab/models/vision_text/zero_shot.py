# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What CLIP's space is good for: finding classes and captions of images."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from paddle_adagc.checks import check_integer
from paddle_adagc.lab.models.vision_text.model import CLIP

Array = npt.NDArray[np.generic]


def class_embeddings(
    model: CLIP, class_captions: Sequence[Array], batch_size: int = 256
) -> Tensor:
    """One direction a class: the mean of its captions' features.

    The ensemble of prompts of Radford et al. (2021), section 3.1.4: features of
    length 1 are averaged, and the mean is brought to length 1. A class's
    captions are tokens [captions, length].
    """
    counts = [len(captions) for captions in class_captions]
    if not counts or not min(counts):
        raise ValueError(
            f"captions by class: {counts}; give every class at least one"
        )
    features = _text_features(model, np.concatenate(class_captions), batch_size)
    means = [part.mean(axis=0) for part in paddle.split(features, counts)]
    return F.normalize(paddle.stack(means), axis=-1)


def zero_shot_accuracy(
    model: CLIP,
    batches: Iterable[tuple[Array, Array]],
    class_captions: Sequence[Array],
    top_k: int = 1,
) -> float:
    """Share of images whose class is among the `top_k` nearest.

    With ImageNet's validation images and the templates of its classes this is
    ImageNet zero-shot accuracy, the paper's measure for CLIP. A batch is images
    [batch, 3, image_size, image_size] and their classes [batch].
    """
    check_integer("top_k", top_k, 1)
    if top_k > len(class_captions):
        raise ValueError(f"top_k={top_k} of {len(class_captions)} classes")
    num_right = num_images = 0
    with _evaluating(model):
        classes = class_embeddings(model, class_captions)
        for images, labels in batches:
            features = model.encode_image(paddle.to_tensor(images))
            cosines = paddle.matmul(features, classes, transpose_y=True)
            nearest = cosines.topk(top_k, axis=-1)[1].numpy()
            num_right += int((nearest == np.asarray(labels)[:, None]).sum())
            num_images += len(labels)
    if not num_images:
        raise ValueError("there are no images: give at least one batch")
    return num_right / num_images


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
