# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Images and captions of tar shards, in an order from which runs can go on.

The shards are dealt out to streams, one for every process that reads, anew in
every epoch. A stream reads its shards from start to end, one after the other,
and shuffles neighbouring samples: what stands at any position of a stream
depends on the seed alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import math
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from paddle.io import Dataset
from PIL.Image import Image
from webdataset.tariterators import base_plus_ext, group_by_keys
from webdataset.utils import glob_with_braces

from adagc_lab.data.config import DataConfig
from adagc_lab.data.datasets import check_index, permutation, random_bits
from adagc_lab.data.images import (
    PairFormat,
    decode,
    training_image,
    validation_image,
)
from adagc_lab.data.tokenizers import CaptionTokenizer

logger = logging.getLogger(__name__)

IMAGES = ("jpg", "jpeg", "png", "webp")  # extensions of images

MAX_CAPTION_BYTES = 2**20

_META = re.compile(r"__[^/]*__($|/)")
"""Beginning of the names of files that webdataset leaves out."""

Sample = dict[str, Any]
"""Content of the files of a sample, as bytes, by extension."""


class Shard(NamedTuple):
    """A tar file, and how many samples it holds."""

    path: str
    num_samples: int


def find_shards(pattern: str) -> list[Shard]:
    """Shards that a pattern with braces and wildcards names, sorted.

    A shard's samples are counted; img2dataset's ``NAME_stats.json`` beside
    ``NAME.tar`` saves reading it.
    """
    paths = sorted(glob_with_braces(pattern))
    if not paths:
        raise FileNotFoundError(f"there are no shards {pattern}")
    return [Shard(path, _count_samples(path)) for path in paths]


def _count_samples(path: str) -> int:
    stats = Path(path).with_name(f"{Path(path).stem}_stats.json")
    if stats.is_file():
        try:
            count = int(json.loads(stats.read_bytes())["successes"])
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(
                f"{stats}: no count of successes ({error!r:.80}): remove it"
            ) from error
    else:
        with _open_tar(path) as archive:
            names = {member.name for member in _members(archive)}
        count = len({base_plus_ext(name)[0] for name in names} - {None})
    if count < 1:
        raise ValueError(f"{path} holds no samples: leave it out")
    return count


@contextlib.contextmanager
def _open_tar(path: str) -> Iterator[tarfile.TarFile]:
    """Open a tar file; a ValueError names a damaged one."""
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except OSError:
        raise
    except Exception as error:  # wrong bytes raise anything
        reason = error.args[0] if error.args else type(error).__name__
        raise ValueError(
            f"{path} is no tar file, or compressed, or damaged: {reason}"
        ) from error


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the files; what a file claims to hold must be in the archive."""
    end = os.path.getsize(str(archive.name))
    for member in archive:
        if member.isreg() and not _META.match(member.name):
            if member.issparse():
                raise ValueError(f"{member.name!r:.100} is sparse")
            if member.offset_data + member.size > end:
                raise ValueError(
                    f"{member.name!r:.100} claims {member.size:,} bytes, more "
                    "than are left"
                )
            yield member
        cast(Any, archive).members = []  # else they stay in memory
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise ValueError(f"no header at byte {archive.offset:,}")


def read_samples(path: str | os.PathLike[str]) -> Iterator[Sample]:
    """Yield the samples of one shard, in their order.

    webdataset, which would run ``pipe:...`` as a shell command, only groups the
    files. A shard is not compressed, so that it needs no more memory than its
    size. A ValueError names a damaged one.
    """
    name = str(Path(path).absolute())
    with _open_tar(name) as archive:
        yield from group_by_keys(_files(archive))


def _files(archive: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    for member in _members(archive):
        content = archive.extractfile(member)
        assert content is not None
        yield {
            "fname": member.name,
            "data": content.read(),
            "__url__": archive.name,
        }


class ShardStream:
    """One of the streams that the shards are dealt out to.

    Epoch after epoch the shards are permuted, and stream ``number`` takes
    every ``num_streams``-th. It shuffles ``shuffle_size`` neighbouring samples
    of a shard, in memory.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        number: int,
        num_streams: int,
        *,
        seed: int,
        shuffle_size: int,
    ) -> None:
        if num_streams > len(shards):
            raise ValueError(
                f"{len(shards)} shards for {num_streams} streams (ranks times "
                "data.num_workers): give more shards or lower data.num_workers"
            )
        self._shards = shards
        self._number, self._num_streams = number, num_streams
        self._seed, self._shuffle_size = seed, shuffle_size
        self._chunks: Iterator[tuple[int, list[Sample]]] = iter(())
        self._start, self._chunk = sys.maxsize, list[Sample]()

    def chunk(self, position: int) -> tuple[list[Sample], int]:
        """Return the shuffled samples around a position, and its place there.

        Cheap if positions rise; going back reads a shard again.
        """
        if position < self._start:
            self._chunks = self._chunks_from(position)
            self._start, self._chunk = next(self._chunks)
        while position >= self._start + len(self._chunk):
            self._start, self._chunk = next(self._chunks)
        return self._chunk, position - self._start

    def _chunks_from(self, position: int) -> Iterator[tuple[int, list[Sample]]]:
        """Yield start and samples of the chunks of a position's shard, on."""
        start = 0
        for epoch in itertools.count():
            seed = random_bits(self._seed, epoch) >> 32
            order = permutation(len(self._shards), seed)
            mine = order[self._number :: self._num_streams]
            for turn, shard in enumerate(self._shards[i] for i in mine):
                if position < start + shard.num_samples:
                    for number, chunk in enumerate(self._read(shard)):
                        key = self._seed, self._number, epoch, turn, number
                        rng = np.random.RandomState(key)
                        places = rng.permutation(len(chunk))
                        begin = start + number * self._shuffle_size
                        yield begin, [chunk[i] for i in places]
                start += shard.num_samples

    def _read(self, shard: Shard) -> Iterator[list[Sample]]:
        reader, num_read = read_samples(shard.path), 0
        while num_read < shard.num_samples:
            most = min(self._shuffle_size, shard.num_samples - num_read)
            chunk = list(itertools.islice(reader, most))
            num_read += len(chunk)
            is_last = num_read == shard.num_samples
            more = is_last and next(reader, None) is not None
            if more or len(chunk) < most:
                raise ValueError(
                    f"{shard.path} has {'more than ' * more}{num_read} "
                    f"samples, {shard.num_samples} were counted: correct or "
                    "remove its _stats.json"
                )
            yield chunk


Candidates = tuple[Sequence[Sample], Callable[[Image], np.ndarray]]
"""A sample, those that may replace it, and how their images become arrays."""


class PairDataset(Dataset):
    """Pairs of an image and its caption, as arrays for the model.

    ``find`` gives the candidates for an index: one that cannot be read (a
    broken image, no caption) is left out, with a warning.
    """

    def __init__(
        self,
        find: Callable[[int], Candidates],
        num_samples: int,
        tokenizer: CaptionTokenizer,
        fingerprint: dict[str, str | int],
    ) -> None:
        super().__init__()
        self.fingerprint = fingerprint
        self._find = find
        self._num_samples = num_samples
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        samples, prepare = self._find(check_index(index, len(self)))
        for sample in samples:
            try:
                data = next((sample[x] for x in IMAGES if x in sample), b"")
                pixel_values = prepare(decode(data))
                input_ids = self._tokenizer(_caption(sample))
            except (KeyError, RecursionError, TypeError, ValueError) as error:
                logger.warning(
                    "%s in %s is left out: %r",
                    sample.get("__key__"),
                    sample.get("__url__"),
                    error,
                )
            else:
                return {"pixel_values": pixel_values, "input_ids": input_ids}
        raise ValueError(
            f"none of {len(samples)} pairs of {samples[0].get('__url__')} can "
            f"be read: shards need images ({', '.join(IMAGES)}) and captions "
            "(txt, json)"
        )


def open_pairs(
    config: DataConfig, num_train_samples: int, wanted: PairFormat
) -> tuple[PairDataset, PairDataset]:
    """Open the training and the validation pairs; the last shards are held out.

    Training is cheap if indices rise; a pair is replaced by the next one that
    was shuffled together with it. Of validation's images the middle is taken.
    """
    assert config.shards is not None
    assert config.tokenizer is not None
    tokenizer = CaptionTokenizer(config.tokenizer, wanted.context_length)
    size, end = tokenizer.vocab_size, tokenizer.end_token
    if not end == size - 1 == wanted.end_token:
        way_out = f"set it to {size}" if end == size - 1 else "give CLIP's"
        raise ValueError(
            f"model.vocab_size={wanted.end_token + 1}: captions end with the "
            f"model's last token, and {config.tokenizer} has {size} tokens and "
            f"ends them with {end}; {way_out}"
        )
    shards = find_shards(config.shards)
    num_held_out = math.ceil(config.validation_fraction * len(shards))
    if num_held_out == len(shards):
        raise ValueError(
            f"{config.shards} is {len(shards)} shard(s): give at least 2, the "
            "last ones are for validation"
        )
    train, held_out = shards[:-num_held_out], shards[-num_held_out:]
    num_streams = wanted.num_ranks * max(1, config.num_workers)
    fingerprint: dict[str, str | int] = {
        "kind": "webdataset",
        "num_shards": len(train),
        "num_pairs": sum(shard.num_samples for shard in train),
        "num_streams": num_streams,
    }
    find = _training_order(config, train, num_streams, wanted)
    samples = _first_samples(held_out, config.validation_size)
    middle = functools.partial(validation_image, size=wanted.image_size)
    return (
        PairDataset(find, num_train_samples, tokenizer, fingerprint),
        PairDataset(
            lambda index: ([*samples[index:], *samples[:index]], middle),
            len(samples),
            tokenizer,
            {},
        ),
    )


def _training_order(
    config: DataConfig,
    shards: Sequence[Shard],
    num_streams: int,
    wanted: PairFormat,
) -> Callable[[int], Candidates]:
    """Deal out pairs to the processes that read.

    Batch ``b`` of all ranks together comes from stream ``b % num_streams``.
    With ``shuffle=False`` PaddleNLP's sampler gives every data rank every
    ``num_ranks``-th batch, and Paddle's loader deals these out to its workers
    in turn: with ``num_ranks * num_workers`` streams each worker reads one.
    """
    order = {"seed": config.seed, "shuffle_size": config.shuffle_size}
    streams = [
        ShardStream(shards, number, num_streams, **order)
        for number in range(num_streams)
    ]

    def find(index: int) -> Candidates:
        batch, row = divmod(index, wanted.batch_size)
        turn, number = divmod(batch, num_streams)
        chunk, place = streams[number].chunk(turn * wanted.batch_size + row)
        rng = np.random.RandomState(random_bits(config.seed, index) >> 32)
        crop = functools.partial(
            training_image, size=wanted.image_size, rng=rng
        )
        return [*chunk[place:], *chunk[:place]], crop

    return find


def _first_samples(shards: Sequence[Shard], number: int) -> list[Sample]:
    """Read the first pairs of held-out shards, undecoded."""
    paths = (read_samples(shard.path) for shard in shards)
    samples = [*itertools.islice(itertools.chain(*paths), number)]
    if len(samples) < number:
        raise ValueError(
            f"data.validation_size is {number}, the {len(shards)} held-out "
            f"shards have {len(samples)} pairs: lower it or raise "
            "data.validation_fraction"
        )
    return samples


def _caption(sample: Sample) -> str:
    """Return file ``txt``, or ``caption`` in file ``json``."""
    content = sample["txt" if "txt" in sample else "json"]
    if len(content) > MAX_CAPTION_BYTES:
        raise ValueError(f"a caption of {len(content):,} bytes")
    if "txt" in sample:
        return content.decode("utf-8")
    caption = json.loads(content)["caption"]
    if not isinstance(caption, str):
        raise TypeError(f"the caption is {caption!r:.40}")
    return caption
