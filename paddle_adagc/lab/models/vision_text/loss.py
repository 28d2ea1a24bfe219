# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CLIP's contrastive loss over all data-parallel ranks."""

import paddle
import paddle.distributed as dist
from paddle import Tensor
from paddle.autograd import PyLayer

from paddle_adagc.lab.models.loss import cross_entropy


class _GatherRows(PyLayer):
    """Rows of all ranks, in their order.

    Every rank's loss depends on every rank's rows: the gradient of this
    rank's rows is the sum over the ranks of what their losses say about them.
    """

    @staticmethod
    def forward(context: object, rows: Tensor) -> Tensor:
        parts: list[Tensor] = []
        dist.all_gather(parts, rows.contiguous())
        return paddle.concat(parts, axis=0)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        rank, size = dist.get_rank(), dist.get_world_size()
        return paddle.split(gradient, size, axis=0)[rank]


def contrastive_loss(
    image_features: Tensor,
    text_features: Tensor,
    scale: Tensor,
    *,
    over_ranks: bool,
) -> Tensor:
    """Cross-entropy of finding the own text, and the own image, averaged.

    Each rank's loss is that of its own pairs among those of all ranks; its
    mean over the ranks is the loss of the whole batch in one process, and so
    is the mean of the gradients, which data parallelism takes.

    Args:
        image_features: [pairs, embed_dim] of this rank, of length 1.
        text_features: Same shape and dtype as `image_features`.
        scale: Factor of the cosines.
        over_ranks: The ranks of the default group hold one batch together,
            in equal parts: gather their features.

    Returns:
        float32 scalar.
    """
    images, texts, first = image_features, text_features, 0
    if over_ranks and dist.get_world_size() > 1:
        images, texts = _GatherRows.apply(images), _GatherRows.apply(texts)
        first = dist.get_rank() * image_features.shape[0]
    labels = first + paddle.arange(image_features.shape[0])
    to_text = paddle.matmul(image_features, texts, transpose_y=True)
    to_image = paddle.matmul(text_features, images, transpose_y=True)
    return 0.5 * (
        cross_entropy(scale * to_text, labels)
        + cross_entropy(scale * to_image, labels)
    )
