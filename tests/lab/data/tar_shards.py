# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tar shards of plain images, written by tests."""

import io
import json
import tarfile
from pathlib import Path

from PIL import Image

GOLDEN = Path(__file__).parents[1] / "models/vision_text/golden"


def encoded_image(grey, kind="PNG", size=(20, 16)):
    """An image of one grey, from 0 to 255, as a file's content."""
    file = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(file, kind)
    return file.getvalue()


def write_shard(path, samples):
    """Each sample is its files' content by extension."""
    with tarfile.open(path, "w") as archive:
        for i, sample in enumerate(samples):
            for extension, data in sample.items():
                member = tarfile.TarInfo(f"{path.stem}{i:04d}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_grey_shards(folder, counts):
    """Shard s, of so many samples, holds images of grey 10 s + i.

    tokenizer.json has 319 tokens; the end is the last one, as in CLIP's.
    """
    for number, count in enumerate(counts):
        samples = [
            {
                "png": encoded_image(10 * number + i),
                "txt": b"A photo of dogs",
                "json": b"{}",
            }
            for i in range(count)
        ]
        write_shard(folder / f"{number:05d}.tar", samples)
    tokenizer = json.loads((GOLDEN / "tokenizer.json").read_text())
    vocabulary, end = tokenizer["model"]["vocab"], "<|endoftext|>"
    last = max(vocabulary, key=vocabulary.get)
    vocabulary[last], vocabulary[end] = vocabulary[end], vocabulary[last]
    tokenizer["added_tokens"][1]["id"] = vocabulary[end]
    tokenizer["post_processor"]["sep"][1] = vocabulary[end]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
