# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Drawings of shapes and their captions."""

import collections

import numpy as np
import pytest
from adagc_lab.data.config import DataConfig
from adagc_lab.data.images import (
    BACKGROUNDS,
    COLOURS,
    MEAN,
    NUM_TOKENS,
    SCENES,
    STD,
    PairFormat,
    Scene,
    build_image_text_datasets,
    draw,
    encode,
)

WANTED = PairFormat(image_size=32, context_length=9, end_token=27)


def restored(image):
    """Pixels in [0, 1], [height, width, 3]."""
    return image.transpose(1, 2, 0) * STD + MEAN


def test_captions_say_all_there_is_and_differ():
    scene = Scene("large", "red", "circle", "top", "left", "gray")
    assert scene.caption == "large red circle top left on gray"
    captions = [scene.caption for scene in SCENES]
    assert len(set(captions)) == len(captions) == 2 * 8 * 4 * 9 * 4
    rows = [tuple(encode(caption, 9, 27)) for caption in captions[::17]]
    assert len(set(rows)) == len(rows)
    ids = encode(captions[0], 11, 40)
    assert (ids[0], *ids[8:]) == (1, 40, 0, 0)
    assert (ids[1:8] < NUM_TOKENS).all()


@pytest.mark.parametrize(
    ("shape", "row", "y", "column", "x"),
    [
        ("triangle", "top", 16, "right", 48),
        ("cross", "bottom", 48, "left", 16),
    ],
)
def test_a_drawing_shows_its_scene(shape, row, y, column, x):
    sizes = {}
    for size in ("small", "large"):
        scene = Scene(size, "blue", shape, row, column, "olive")
        pixels = restored(draw(scene, 64, seed=5))
        corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
        np.testing.assert_allclose(
            corners, [BACKGROUNDS["olive"]] * 4, atol=0.21
        )
        assert np.abs(pixels[y, x] - COLOURS["blue"]).max() < 0.21
        is_blue = pixels[..., 2] > 0.6
        rows, columns = np.nonzero(is_blue)
        assert abs(rows.mean() - y) < 6
        assert abs(columns.mean() - x) < 6
        sizes[size] = is_blue.sum()
    assert sizes["large"] > 2 * sizes["small"] > 0


def test_training_scenes_are_drawn_evenly_and_validation_shows_others():
    config = DataConfig(kind="shapes", validation_size=116)
    train, validation = build_image_text_datasets(config, 800, WANTED)
    assert len(validation.scenes) == 116
    assert not {*train.scenes} & {*validation.scenes}
    assert {*train.scenes} | {*validation.scenes} == {*SCENES}
    words = collections.Counter(
        int(train[i]["input_ids"][2]) for i in range(800)
    )
    assert len(words) == 8
    assert max(words.values()) < 1.6 * min(words.values())
    assert len({tuple(s["input_ids"]) for s in validation}) == 116
