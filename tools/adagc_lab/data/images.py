# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Drawings of shapes with captions, as arrays that CLIP takes.

A drawing shows a scene: one shape on a plain background. Its caption names all
there is to know, ``"large red circle top left on gray"``; the drawing adds
its own noise, tint and shift. Some scenes are held out, so that
validation asks for combinations that training has never shown.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from paddle.io import Dataset

from adagc_lab.data.config import DataConfig
from adagc_lab.data.loading import check_index, permutation, random_bits

MEAN = np.array((0.48145466, 0.4578275, 0.40821073), np.float32)
STD = np.array((0.26862954, 0.26130258, 0.27577711), np.float32)
"""Of red, green and blue over CLIP's training images, values in [0, 1]."""

COLOURS = {
    "red": (0.9, 0.1, 0.1),
    "green": (0.1, 0.7, 0.2),
    "blue": (0.15, 0.25, 0.95),
    "yellow": (0.95, 0.9, 0.1),
    "purple": (0.6, 0.1, 0.7),
    "cyan": (0.1, 0.85, 0.9),
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
}
BACKGROUNDS = {
    "gray": (0.5, 0.5, 0.5),
    "pink": (0.95, 0.7, 0.75),
    "olive": (0.4, 0.4, 0.1),
    "navy": (0.05, 0.05, 0.35),
}
SHAPES = ("circle", "square", "triangle", "cross")
RADII = {"small": 0.11, "large": 0.19}
"""Of the shape, as a share of the image's height."""
ROWS = {"top": 0.25, "middle": 0.5, "bottom": 0.75}
COLUMNS = {"left": 0.25, "centre": 0.5, "right": 0.75}

_WORDS = (*RADII, *COLOURS, *SHAPES, *ROWS, *COLUMNS, "on", *BACKGROUNDS)
_START_TOKEN = 1  # 0 is padding
_FIRST_WORD = 2
_TOKENS = {word: _FIRST_WORD + i for i, word in enumerate(_WORDS)}
NUM_TOKENS = _FIRST_WORD + len(_WORDS)
"""Tokens without the one that ends a caption: ids from 0 up to this."""

CAPTION_LENGTH = 9  # tokens of a caption, from start to end

_SHIFT = 0.03
_TINT = 0.1
_NOISE = 0.2


class Scene(NamedTuple):
    """Content of a drawing, in the words of its caption."""

    size: str
    colour: str
    shape: str
    row: str
    column: str
    background: str

    @property
    def caption(self) -> str:
        """Such as ``"large red circle top left on gray"``."""
        *words, background = self
        return " ".join([*words, "on", background])


_ALL = itertools.product(RADII, COLOURS, SHAPES, ROWS, COLUMNS, BACKGROUNDS)
SCENES = tuple(Scene(*words) for words in _ALL)
"""Every combination, in a fixed order."""


def split_scenes(
    validation_fraction: float, seed: int
) -> tuple[list[Scene], list[Scene]]:
    """Scenes to train on, and held-out ones, at least one of each."""
    count = len(SCENES)
    order = [SCENES[i] for i in permutation(count, seed)]
    num_held_out = min(math.ceil(validation_fraction * count), count - 1)
    return order[num_held_out:], order[:num_held_out]


def encode(caption: str, context_length: int, end_token: int) -> np.ndarray:
    """Tokens of a caption, padded with 0, int64 ``[context_length]``."""
    words = [_TOKENS[word] for word in caption.split()]
    ids = [_START_TOKEN, *words, end_token]
    padded = np.zeros(context_length, np.int64)
    padded[: len(ids)] = ids
    return padded


def draw(scene: Scene, size: int, seed: int) -> np.ndarray:
    """Draw a scene on ``[3, size, size]`` pixels, normalised as CLIP's.

    The noise, the tint and the shift are those of a seed in [0, 2**32).
    """
    rng = np.random.RandomState(seed)
    shift = rng.uniform(-_SHIFT, _SHIFT, 2)
    tint = rng.uniform(-_TINT, _TINT, (2, 3))
    noise = np.frombuffer(rng.bytes(3 * size * size), np.uint8)
    image = noise.reshape(3, size, size) * np.float32(_NOISE / 255)
    at = (np.arange(size) + 0.5) / size
    radius = RADII[scene.size]
    y = (at - ROWS[scene.row] - shift[0])[:, None] / radius
    x = (at - COLUMNS[scene.column] - shift[1])[None, :] / radius
    inside = _inside(scene.shape, y, x)
    colour = np.asarray(COLOURS[scene.colour]) + tint[0]
    background = np.asarray(BACKGROUNDS[scene.background]) + tint[1]
    flat = np.where(inside, colour[:, None, None], background[:, None, None])
    pixels = image + flat.astype(np.float32) - _NOISE / 2
    return (pixels - MEAN[:, None, None]) / STD[:, None, None]


def _inside(shape: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return which points a shape of radius 1 around 0 covers; y is down."""
    if shape == "circle":
        return y**2 + x**2 <= 1
    if shape == "square":
        return np.maximum(np.abs(y), np.abs(x)) <= 0.85
    if shape == "triangle":
        return (y <= 0.8) & (np.abs(x) <= 0.55 * (y + 1))
    thin = np.minimum(np.abs(y), np.abs(x)) <= 0.3
    return thin & (np.maximum(np.abs(y), np.abs(x)) <= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairFormat:
    """Form that a model and its run need image-text data in."""

    image_size: int  # height and width, in pixels
    context_length: int  # tokens of a caption, padding included
    end_token: int  # ends a caption, the last of the model's tokens


class ShapesDataset(Dataset):
    """Drawings and captions; sample ``i`` depends on the seed and on ``i``.

    Scenes come at random, with replacement, or in turn.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        num_samples: int,
        wanted: PairFormat,
        *,
        seed: int,
        is_random: bool,
    ) -> None:
        super().__init__()
        if wanted.end_token < NUM_TOKENS:
            raise ValueError(
                f"model.vocab_size={wanted.end_token + 1}: the captions use "
                f"the tokens up to {NUM_TOKENS - 1}, and one ends them; raise "
                f"model.vocab_size to {NUM_TOKENS + 1} or more"
            )
        if wanted.context_length < CAPTION_LENGTH:
            raise ValueError(
                f"model.context_length={wanted.context_length}: captions have "
                f"{CAPTION_LENGTH} tokens; raise it"
            )
        self.scenes = list(scenes)
        self.num_samples = num_samples
        self.image_size = wanted.image_size
        self.seed = seed
        self.is_random = is_random
        self.fingerprint: dict[str, str | int] = {
            "kind": "shapes",
            "num_scenes": len(self.scenes),
        }
        self._input_ids = [
            encode(scene.caption, wanted.context_length, wanted.end_token)
            for scene in self.scenes
        ]

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        index = check_index(index, len(self))
        bits = random_bits(self.seed, index)
        number = (bits if self.is_random else index) % len(self.scenes)
        drawing = draw(self.scenes[number], self.image_size, seed=bits >> 32)
        return {"pixel_values": drawing, "input_ids": self._input_ids[number]}


def build_image_text_datasets(
    config: DataConfig, num_train_samples: int, wanted: PairFormat
) -> tuple[ShapesDataset, ShapesDataset]:
    """Make the training and the validation data that ``config`` describes.

    Samples have ``pixel_values``, float32 ``[3, image_size, image_size]``, and
    ``input_ids``, int64 ``[context_length]``. Validation shows scenes that
    training does not.
    """
    scenes, held_out = split_scenes(config.validation_fraction, config.seed)
    size, seed = config.validation_size, config.seed
    return (
        ShapesDataset(
            scenes, num_train_samples, wanted, seed=seed, is_random=True
        ),
        ShapesDataset(
            held_out, size, wanted, seed=seed + 2**32, is_random=False
        ),
    )
