# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The contrastive loss, in one process and over two."""

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks

from paddle_adagc.lab.models.vision_text.config import (
    MAX_LOGIT_SCALE,
    CLIPConfig,
)
from paddle_adagc.lab.models.vision_text.loss import contrastive_loss
from paddle_adagc.lab.models.vision_text.model import CLIP
from paddle_adagc.optimizers.lion import Lion

RTOL = 1e-5


def literal_loss(images, texts, scale):
    """Mean of both cross-entropies, in NumPy."""
    logits = scale * images @ texts.T
    losses = []
    for rows in (logits, logits.T):
        log_sum = np.log(np.exp(rows).sum(1))
        losses.append((log_sum - np.diag(rows)).mean())
    return np.mean(losses)


def unit_rows(rng, count, width):
    rows = rng.normal(size=(count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_loss_is_the_literal_one():
    rng = np.random.default_rng(0)
    images, texts = unit_rows(rng, 5, 8), unit_rows(rng, 5, 8)
    loss = contrastive_loss(
        paddle.to_tensor(images, "float32"),
        paddle.to_tensor(texts, "float32"),
        paddle.to_tensor([7.0]),
        over_ranks=False,
    )
    np.testing.assert_allclose(
        float(loss), literal_loss(images, texts, 7.0), rtol=RTOL
    )


def make_step(rank, size):
    """Loss and gradients of this rank's part of a batch of 6 pairs."""
    paddle.seed(3)
    model = CLIP(CLIPConfig(vision_layers=1, text_layers=1))
    rng = np.random.default_rng(1)
    pixels = rng.normal(size=(6, 3, 32, 32)).astype("float32")
    ids = rng.integers(1, 60, size=(6, 8))
    ids[:, 7] = 63
    part = slice(rank * 6 // size, (rank + 1) * 6 // size)
    loss, _, _ = model(
        paddle.to_tensor(pixels[part]), paddle.to_tensor(ids[part])
    )
    loss.backward()
    return model, loss


def step_of_rank():
    import paddle.distributed as dist

    model, loss = make_step(dist.get_rank(), dist.get_world_size())
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        dist.all_reduce(gradient)  # as data parallelism does, then the mean
        gradients[name] = gradient.numpy() / dist.get_world_size()
    return float(loss), gradients


@pytest.mark.slow
def test_two_ranks_have_the_loss_and_gradients_of_the_whole_batch():
    model, loss = make_step(0, 1)
    ranks = run_on_ranks(step_of_rank, 2)
    losses = [rank[0] for rank in ranks]
    assert losses[0] != losses[1]
    np.testing.assert_allclose(np.mean(losses), float(loss), rtol=RTOL)
    for name, parameter in model.named_parameters():
        whole = parameter.grad.numpy()
        for _, gradients in ranks:
            np.testing.assert_allclose(
                gradients[name],
                whole,
                atol=RTOL * np.abs(whole).max() + 1e-9,
                err_msg=name,
            )


def test_logit_scale_stays_in_its_bounds():
    model = CLIP(CLIPConfig())
    for value, expected in (
        (9.0, MAX_LOGIT_SCALE),
        (-1.0, 0.0),
        (2.0, 2.0),
    ):
        model.logit_scale.set_value(paddle.to_tensor([value]))
        model.clamp_logit_scale()
        np.testing.assert_allclose(model.logit_scale.numpy(), [expected])


def test_master_weight_of_the_logit_scale_is_clamped_too():
    model = CLIP(CLIPConfig())
    model.logit_scale = paddle.create_parameter(
        [1],
        "bfloat16",
        default_initializer=paddle.nn.initializer.Constant(4.5),
    )
    lion = Lion(
        0.1,
        parameters=[model.logit_scale],
        weight_decay=0.0,
        multi_precision=True,
    )
    for _ in range(4):
        model.logit_scale.grad = paddle.to_tensor([-1.0], "bfloat16")
        lion.step()
        model.clamp_logit_scale(lion)
    (master,) = lion._master_weights.values()
    np.testing.assert_allclose(master.numpy(), MAX_LOGIT_SCALE)
    np.testing.assert_allclose(float(model.logit_scale), 4.6, atol=0.02)
