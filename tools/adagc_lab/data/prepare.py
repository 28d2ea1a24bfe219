# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A corpus into PaddleNLP's memory-mapped dataset.

PaddleFormers' own tool skips ``.json.gz``, as C4's files are, and writes an
empty dataset.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from adagc_lab.data.indexed import library, token_dtype
from adagc_lab.data.tokenizers import Tokenizer

_BATCH = 200  # documents that are encoded at a time
FORMATS = (".json", ".jsonl", ".txt")


def read_files(inputs: Sequence[str], field: str) -> Iterator[str]:
    """Yield the documents of files, and of the files below folders by name.

    ``.json`` and ``.jsonl``: an object a line, its text in ``field``;
    ``.txt``: a document a line. Each may end in ``.gz``.
    """
    for given in map(Path, inputs):
        found = [given]
        if given.is_dir():
            found = sorted(p for p in given.rglob("*") if p.is_file())
        for path in found:
            ending = Path(path.name.removesuffix(".gz")).suffix
            if ending not in FORMATS:
                raise ValueError(
                    f"{path}: files end in {', '.join(FORMATS)}, maybe with .gz"
                )
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if ending == ".txt":
                        yield line.rstrip("\r\n")
                        continue
                    try:
                        yield str(json.loads(line)[field])
                    except (KeyError, TypeError, ValueError) as error:
                        raise ValueError(
                            f"{path}, line {number}: no JSON object with the "
                            f"field {field!r}: {line[:40]!r}"
                        ) from error


def read_hub(name: str, configuration: str | None, field: str) -> Iterator[str]:
    """Yield the documents of a dataset that Hugging Face streams."""
    from datasets import load_dataset

    rows = load_dataset(name, configuration, split="train", streaming=True)
    for row in rows:
        yield row[field]


def prepare(
    texts: Iterable[str],
    output: str,
    tokenizer: Tokenizer,
    validation_fraction: float = 0.0,
) -> dict[str, int]:
    """Write ``output.bin`` and ``.idx``; count the documents of each part.

    A share of the documents, chosen by a hash of their text, goes to
    ``output_validation`` instead. The files get their names once all are
    complete. Documents without tokens are left out.
    """
    prefixes = [output, f"{output}_validation"][: 1 + bool(validation_fraction)]
    for path in (f"{prefix}.idx" for prefix in prefixes):
        if os.path.exists(path):
            raise FileExistsError(f"{path} exists: remove it, or name another")
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    dtype, module = token_dtype(tokenizer.vocab_size), library()
    builders = [
        module.MMapIndexedDatasetBuilder(f"{prefix}.bin.partial", dtype)
        for prefix in prefixes
    ]
    counts, threshold = [0] * len(prefixes), int(validation_fraction * 2**64)
    stream = iter(texts)
    while batch := [*itertools.islice(stream, _BATCH)]:
        for text, ids in zip(batch, tokenizer.encode(batch), strict=True):
            if not len(ids):
                continue
            head = hashlib.sha256(text.encode()).digest()[:8]
            part = int(int.from_bytes(head, "big") < threshold)
            builders[part].add_item([*ids, tokenizer.eos_id])
            builders[part].end_document()
            counts[part] += 1
    for prefix, builder, count in zip(prefixes, builders, counts, strict=True):
        if not count:
            raise ValueError(
                f"no documents for {prefix}: of {sum(counts)} a hash of the "
                f"text chose none (validation_fraction={validation_fraction})"
            )
        with contextlib.redirect_stdout(io.StringIO()):  # its statistics
            builder.finalize(f"{prefix}.idx.partial")
    for prefix in prefixes:  # an index says that its tokens are there
        os.replace(f"{prefix}.bin.partial", f"{prefix}.bin")
        os.replace(f"{prefix}.idx.partial", f"{prefix}.idx")
    return dict(zip(prefixes, counts, strict=True))
