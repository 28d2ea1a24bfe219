# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Patch dropout, pooling, attention on CPUs."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.vision_text import transformer
from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.towers import (
    PatchDropout,
    TextTransformer,
    VisionTransformer,
)


def numbered_patches(batch, count):
    """Every patch holds its number twice."""
    rows = paddle.arange(count, dtype="float32").reshape([1, count, 1])
    return rows.expand([batch, count, 2])


@pytest.mark.parametrize(
    ("rate", "count", "kept"), [(0.5, 49, 24), (0.9, 4, 1), (0.25, 8, 6)]
)
def test_training_keeps_some_patches_of_each_image(rate, count, kept):
    layer = PatchDropout(rate)
    paddle.seed(1)
    out = layer(numbered_patches(40, count)).numpy()
    assert out.shape == (40, kept, 2)
    np.testing.assert_array_equal(out[..., 0], out[..., 1])
    chosen = [frozenset(row) for row in out[..., 0]]
    assert all(len(numbers) == kept for numbers in chosen)
    assert len(set(chosen)) > 1
    assert set().union(*chosen) == set(range(count))


@pytest.mark.parametrize(("rate", "trains"), [(0.5, False), (0.0, True)])
def test_otherwise_all_patches_stay(rate, trains):
    layer = PatchDropout(rate)
    layer.training = trains
    patches = numbered_patches(2, 9)
    assert layer(patches) is patches


def test_dropped_patches_get_no_gradient_and_the_class_token_always_one():
    config = CLIPConfig(patch_dropout=0.75)  # 4 of 16 patches
    tower = VisionTransformer(config)
    tower(paddle.randn([1, 3, 32, 32])).sum().backward()
    norms = tower.positional_embedding.grad.norm(axis=1).numpy()
    assert norms[0] > 0
    assert np.count_nonzero(norms[1:]) == 4
    assert tower.class_embedding.grad.norm() > 0


def test_text_after_the_end_does_not_matter():
    tower = TextTransformer(CLIPConfig())
    ids = np.full((2, 10), 3)
    ids[:, 4] = 63
    ids[1, 5:] = [9, 63, 2, 1, 0]
    first, second = tower(paddle.to_tensor(ids)).numpy()
    np.testing.assert_array_equal(first, second)
    ids[1, 3] = 8
    third = tower(paddle.to_tensor(ids)).numpy()[1]
    assert np.abs(third - first).max() > 1e-4


@pytest.mark.parametrize("causal", [True, False])
def test_attention_of_cpus_is_that_of_gpus(causal):
    results = []
    for attend in (transformer._attend_batched, transformer._attend_folded):
        paddle.seed(0)
        x = paddle.randn([3, 7, 3 * 24])
        x.stop_gradient = False
        out = attend(x, 4, causal)
        (out * paddle.randn(out.shape)).sum().backward()
        results.append((out.numpy(), x.grad.numpy()))
    for batched, folded in zip(*results, strict=True):
        np.testing.assert_allclose(folded, batched, atol=1e-6)
