# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loss: cross-entropy and the router losses."""

import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.distributed import fleet

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.layers import as_float32, tensor_parallel_degree

IGNORED_LABEL = -100


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that count, in float32; 0 if none does.

    `F.cross_entropy` with a negative `ignore_index` would divide by all
    labels, the ignored ones too.

    Args:
        logits: [..., vocab]; under tensor parallelism this rank's share of
            the vocabulary.
        labels: [...], integer; -100 does not count.
    """
    logits = as_float32(logits).reshape([-1, logits.shape[-1]])
    labels = labels.reshape([-1, 1])
    if tensor_parallel_degree() > 1:
        losses = fleet.meta_parallel.ParallelCrossEntropy(
            ignore_index=IGNORED_LABEL
        )(logits, labels)
    else:
        losses = F.cross_entropy(
            logits, labels, ignore_index=IGNORED_LABEL, reduction="none"
        )
    counted = (labels != IGNORED_LABEL).astype("float32").sum()
    # Paddle's vectorised CPU softmax makes log(vocab_size) out of NaN
    # logits: a model that is lost would look alive.
    lost = 0.0 * logits.detach().sum()
    return losses.sum() / counted.clip(min=1.0) + lost


def training_loss(
    config: DecoderConfig,
    lm_loss: Tensor,
    router_losses: Tensor | None,
    *,
    adds_router_losses: bool,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to minimise, and its parts.

    Args:
        config: The decoder's config.
        lm_loss: Result of `cross_entropy`.
        router_losses: Load-balancing loss and z-loss, averaged over the MoE
            layers, [2]; None without experts.
        adds_router_losses: Whether they are part of the loss (in training).

    Returns:
        The loss, a float32 scalar; and by name its parts, detached and
        without their factors.
    """
    parts = {"lm_loss": lm_loss.detach()}
    if router_losses is None:
        return lm_loss, parts
    balance, z_loss = paddle.unbind(router_losses)
    parts["router_aux_loss"] = balance.detach()
    parts["router_z_loss"] = z_loss.detach()
    if not adds_router_losses:
        return lm_loss, parts
    loss = (
        lm_loss
        + config.router_aux_loss_coef * balance
        + config.router_z_loss_coef * z_loss
    )
    return loss, parts
