# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Images and captions out of tar shards, as LAION's."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Sequence

import numpy as np
from paddle.io import Dataset
from PIL.Image import Image

from paddle_adagc.lab.data.image_text.shards import (
    Sample,
    Shard,
    ShardStream,
    read_samples,
)
from paddle_adagc.lab.data.image_text.tokenizer import CaptionTokenizer
from paddle_adagc.lab.data.image_text.transforms import (
    decode,
    training_image,
    validation_image,
)
from paddle_adagc.lab.data.order import random_bits

logger = logging.getLogger(__name__)

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Extensions of images."""


def caption_of(sample: Sample) -> str:
    """Return the caption: file ``txt``, or ``caption`` in file ``json``.

    Raises:
        KeyError: It has neither.
        ValueError: The file is not text, or not JSON.
    """
    if "txt" in sample:
        return sample["txt"].decode("utf-8")
    return str(json.loads(sample["json"])["caption"])


def image_data(sample: Sample) -> bytes:
    """Return the encoded image.

    Raises:
        KeyError: It has none.
    """
    for extension in IMAGES:
        if extension in sample:
            return sample[extension]
    raise KeyError(f"an image, one of {', '.join(IMAGES)}")


class PairStreams(Dataset):
    """Training pairs, dealt out to the processes that read.

    Batch ``b`` of all ranks together comes from stream ``b % num_streams``.
    With ``shuffle=False`` PaddleNLP's sampler gives every data rank every
    ``num_ranks``-th batch, and Paddle's loader deals these out to its workers
    in turn: with ``num_ranks * num_workers`` streams each worker reads one.

    A pair that cannot be read (a broken image, no caption) is replaced by the
    next one that was shuffled together with it, with a warning.

    Args:
        shards: Shards to train on.
        num_samples: Length of the dataset, over all ranks and steps.
        tokenizer: Tokenizer of the captions.
        image_size: Height and width of a prepared image, in pixels.
        batch_size: Pairs per rank and step.
        num_streams: Ranks with data of their own, times worker processes.
        seed: Seed of the order and of the crops.
        shuffle_size: See :class:`ShardStream`.

    Raises:
        ValueError: There are more streams than shards.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        num_samples: int,
        tokenizer: CaptionTokenizer,
        *,
        image_size: int,
        batch_size: int,
        num_streams: int,
        seed: int,
        shuffle_size: int,
    ) -> None:
        super().__init__()
        self.num_samples = num_samples
        self.tokenizer = tokenizer
        self.image_size = image_size
        self.batch_size = batch_size
        self.seed = seed
        self.fingerprint: dict[str, str | int] = {
            "kind": "webdataset",
            "num_shards": len(shards),
            "num_pairs": sum(shard.num_samples for shard in shards),
            "num_streams": num_streams,
        }
        self._streams = [
            ShardStream(
                shards,
                number,
                num_streams,
                seed=seed,
                shuffle_size=shuffle_size,
            )
            for number in range(num_streams)
        ]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Read sample ``index``; cheap if a stream's indices rise.

        Returns:
            ``pixel_values``, float32 ``[3, image_size, image_size]``, and
            ``input_ids``, int64 ``[context_length]``.

        Raises:
            IndexError: ``index`` is not in [0, len(self)).
            ValueError: No pair of those shuffled together can be read.
        """
        index = int(index)
        if not 0 <= index < self.num_samples:
            raise IndexError(
                f"sample {index} of a dataset of {self.num_samples} samples"
            )
        batch, row = divmod(index, self.batch_size)
        turn, number = divmod(batch, len(self._streams))
        position = turn * self.batch_size + row
        chunk, place = self._streams[number].chunk(position)
        rng = np.random.RandomState(random_bits(self.seed, index) >> 32)
        return _first_readable(
            [*chunk[place:], *chunk[:place]],
            self.tokenizer,
            lambda image: training_image(image, self.image_size, rng),
        )


class HeldOutPairs(Dataset):
    """Validation pairs, the first ones of shards that are not trained on.

    Their files are read, undecoded, when the dataset is made. A pair that
    cannot be read is replaced by the next one, with a warning.

    Args:
        shards: Held-out shards.
        num_samples: Number of pairs.
        tokenizer: Tokenizer of the captions.
        image_size: Height and width of a prepared image, in pixels.

    Raises:
        ValueError: The shards hold fewer pairs.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        num_samples: int,
        tokenizer: CaptionTokenizer,
        *,
        image_size: int,
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.image_size = image_size
        samples = itertools.chain.from_iterable(
            read_samples(shard.path) for shard in shards
        )
        self._samples = list(itertools.islice(samples, num_samples))
        if len(self._samples) < num_samples:
            raise ValueError(
                f"data.validation_size is {num_samples}, the {len(shards)} "
                f"held-out shards have {len(self._samples)} pairs: lower it or "
                "raise data.validation_fraction"
            )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Sample ``index``, the middle of its image; see `PairStreams`."""
        return _first_readable(
            [*self._samples[index:], *self._samples[:index]],
            self.tokenizer,
            lambda image: validation_image(image, self.image_size),
        )


def _first_readable(
    samples: Sequence[Sample],
    tokenizer: CaptionTokenizer,
    prepare: Callable[[Image], np.ndarray],
) -> dict[str, np.ndarray]:
    """Return the first sample with image and caption, for the model."""
    for sample in samples:
        try:
            pixel_values = prepare(decode(image_data(sample)))
            input_ids = tokenizer(caption_of(sample))
        except (ValueError, KeyError) as error:
            logger.warning(
                "%s in %s is left out: %r",
                sample.get("__key__"),
                sample.get("__url__"),
                error,
            )
        else:
            return {"pixel_values": pixel_values, "input_ids": input_ids}
    raise ValueError(
        f"none of {len(samples)} pairs of {samples[0].get('__url__')} can be "
        f"read: shards need images ({', '.join(IMAGES)}) and captions "
        "(txt, json)"
    )
