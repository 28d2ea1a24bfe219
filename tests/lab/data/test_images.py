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


def build(num_samples=64, wanted=WANTED, **fields):
    config = DataConfig(kind="shapes", **fields)
    return build_image_text_datasets(config, num_samples, wanted)


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


def test_samples_depend_on_seed_and_index_alone():
    first, validation = build(seed=1, validation_size=8)
    second, _ = build(num_samples=640, seed=1)
    other, _ = build(seed=2)
    assert (len(first), len(validation)) == (64, 8)
    for index in (0, 63):
        sample = first[index]
        pixels, ids = sample["pixel_values"], sample["input_ids"]
        assert (pixels.dtype, pixels.shape) == (np.float32, (3, 32, 32))
        assert ids.dtype == np.int64
        for key, value in sample.items():
            np.testing.assert_array_equal(value, second[index][key])
        assert (pixels != other[index]["pixel_values"]).any()
    with pytest.raises(IndexError):
        first[64]


def test_training_scenes_are_drawn_evenly_and_validation_shows_others():
    train, validation = build(num_samples=800, validation_size=116)
    assert len(validation.scenes) == 116
    assert not {*train.scenes} & {*validation.scenes}
    assert {*train.scenes} | {*validation.scenes} == {*SCENES}
    words = collections.Counter(
        int(train[i]["input_ids"][2]) for i in range(800)
    )
    assert len(words) == 8
    assert max(words.values()) < 1.6 * min(words.values())
    assert len({tuple(s["input_ids"]) for s in validation}) == 116
