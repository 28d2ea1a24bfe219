# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Tokenise a corpus into a memory-mapped dataset for pretraining.

    python tools/prepare_data.py corpus/*.json.gz --output data/corpus \
        --tokenizer tokenizer.json --validation-fraction 0.001
    python tools/prepare_data.py --hub allenai/c4 --hub-name en \
        --output data/c4 --tokenizer meta-llama/Llama-2-7b-hf

It writes OUTPUT.bin and OUTPUT.idx, with --validation-fraction also
OUTPUT_validation.bin and .idx. To train on the result:

    data: {kind: mmap, prefix: OUTPUT, validation_prefix: OUTPUT_validation}

(PaddleFormers' own tool skips .json.gz, as C4's files are, and writes an empty
dataset.)
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from adagc_lab import check_installed
from adagc_lab.storage import storage_errors
from command import add_options, exit_status, make_parser

_OPTIONS = """
inputs FILE             .json or .jsonl (an object a line), .gz or not, or
                        folder of them
--output OUTPUT         path of the dataset without ending
--tokenizer TOKENIZER   bytes, tokenizer.json, a folder with one, or a model on
                        the Hugging Face hub
--eos-token EOS_TOKEN   after each document; default: the tokenizer's
--text-field TEXT_FIELD
                        field of the JSON object; default: text
--validation-fraction VALIDATION_FRACTION
                        share of the documents, by a hash of their text, for
                        OUTPUT_validation; default: 0
--hub DATASET           instead of FILE: a dataset of the Hugging Face hub, or
                        of a local folder
--hub-name NAME         its configuration
"""
_FORMATS = (".json", ".jsonl")
_BATCH = 200  # documents that are encoded at a time
_MAX_UINT16 = 65500  # PaddleNLP's own limit of vocabularies in uint16


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("prepare_data", __doc__)
    add_options(
        parser,
        _OPTIONS,
        inputs={"nargs": "*"},
        output={"required": True},
        tokenizer={"required": True},
        text_field={"default": "text"},
        validation_fraction={"type": float, "default": 0.0},
    )
    return exit_status(parser, _prepare, parser.parse_args(arguments))


def _prepare(options: argparse.Namespace) -> int:
    check_installed("tokenizers", "nlp")
    share, field = options.validation_fraction, options.text_field
    for path in options.inputs:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} is not a file")
    if bool(options.inputs) == bool(options.hub):
        raise ValueError("give files, or a dataset by --hub")
    if options.output.endswith("/"):
        raise ValueError(f"--output {options.output}: a prefix of files")
    if not 0 <= share < 1:
        raise ValueError(f"--validation-fraction {share}: not in [0, 1)")
    texts = read_files(options.inputs, field)
    if options.hub:
        texts = read_hub(options.hub, options.hub_name, field)
    tokenizer = find_tokenizer(options.tokenizer, options.eos_token)
    with storage_errors(options.output):
        counts = write(texts, options.output, tokenizer, share)
    for prefix, count in counts.items():
        print(f"{prefix}: {count:,} documents")
    print(f"vocabulary: {tokenizer.vocab_size:,} tokens")
    return 0


def read_files(inputs: Sequence[str], field: str) -> Iterator[str]:
    """Yield the documents of files, and of the files below folders by name."""
    for given in map(Path, inputs):
        paths = sorted(given.rglob("*")) if given.is_dir() else [given]
        for path in filter(Path.is_file, paths):
            if not path.name.removesuffix(".gz").endswith(_FORMATS):
                formats = ", ".join(_FORMATS)
                raise ValueError(f"{path}: files end in {formats}, maybe .gz")
            opened = gzip.open if path.suffix == ".gz" else open
            try:
                with opened(path, "rt", encoding="utf-8") as file:
                    yield from _documents(path, file, field)
            except (EOFError, OSError, UnicodeError, zlib.error) as error:
                raise ValueError(f"{path} cannot be read: {error}") from error


def _documents(path: Path, lines: Iterable[str], field: str) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)[field]
            text.encode()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}, line {number}: no JSON object with a text in the "
                f"field {field!r}: {line[:40]!r}"
            ) from error
        yield text


def read_hub(name: str, configuration: str | None, field: str) -> Iterator[str]:
    """Yield the documents of a dataset that Hugging Face streams."""
    from datasets import load_dataset  # after PaddleNLP, which asks for it

    for row in load_dataset(name, configuration, split="train", streaming=True):
        if field not in row:
            raise ValueError(f"{name} has {[*row]}, not {field!r}")
        yield row[field]


class Tokenizer(NamedTuple):
    """What a corpus is tokenised by."""

    encode: Callable[[Sequence[str]], Sequence[Sequence[int]]]
    vocab_size: int  # largest token id plus 1
    eos_id: int  # token after each document


def find_tokenizer(name: str, eos_token: str | None = None) -> Tokenizer:
    """Read a tokenizer; it, or ``tokenizer_config.json``, names the end."""
    if name == "bytes":
        return Tokenizer(lambda texts: [t.encode() for t in texts], 256, 0)
    from tokenizers import Tokenizer as Fast

    path = _tokenizer_file(name)
    fast = Fast.from_file(str(path))
    fast.no_truncation()  # files often cut or pad
    fast.no_padding()
    fast.encode_special_tokens = True  # a text that spells one is text
    ids = fast.get_vocab(with_added_tokens=True)
    beside = path.with_name("tokenizer_config.json")
    values = json.loads(beside.read_text("utf-8")) if beside.is_file() else {}
    token = eos_token or values.get("eos_token") or ""
    token = token["content"] if isinstance(token, dict) else token
    if token not in ids:
        raise ValueError(
            f"{path} does not say which token ends a document: give "
            "--eos-token, or put tokenizer_config.json beside it"
        )

    def encode(texts: Sequence[str]) -> list[list[int]]:
        batch = fast.encode_batch_fast([*texts], add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    return Tokenizer(encode, max(ids.values()) + 1, ids[token])


def _tokenizer_file(name: str) -> Path:
    path = Path(name)
    if not path.exists() and path.suffix != ".json" and name.count("/") < 2:
        from huggingface_hub import snapshot_download

        path = Path(snapshot_download(name, allow_patterns=["tokenizer*"]))
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file() or path.suffix != ".json":
        raise FileNotFoundError(
            f"tokenizer is {name!r}: there is no tokenizer.json"
        )
    return path


def write(
    texts: Iterable[str], output: str, tokenizer: Tokenizer, share: float
) -> dict[str, int]:
    """Write the dataset's files; count the documents of each part.

    The index comes last: without it there is no dataset. Documents without
    tokens are left out.
    """
    import numpy as np
    from adagc_lab.data.text import indexed_dataset

    prefixes = [output, f"{output}_validation"][: 1 + bool(share)]
    for prefix in prefixes:
        if os.path.exists(f"{prefix}.idx"):
            raise FileExistsError(f"{prefix}.idx exists: remove it")
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    dtype = np.uint16 if tokenizer.vocab_size < _MAX_UINT16 else np.int32
    make = indexed_dataset().MMapIndexedDatasetBuilder
    builders = [make(f"{prefix}.bin", dtype) for prefix in prefixes]
    counts, stream = [0] * len(prefixes), iter(texts)
    while batch := [*itertools.islice(stream, _BATCH)]:
        for text, ids in zip(batch, tokenizer.encode(batch), strict=True):
            if len(ids):
                head = hashlib.sha256(text.encode()).digest()[:8]
                part = int(int.from_bytes(head, "big") < int(share * 2**64))
                builders[part].add_item([*ids, tokenizer.eos_id])
                builders[part].end_document()
                counts[part] += 1
    found = dict(zip(prefixes, counts, strict=True))
    if empty := [prefix for prefix in prefixes if not found[prefix]]:
        raise ValueError(f"no documents for {empty[0]}, of {sum(counts)}")
    with contextlib.redirect_stdout(io.StringIO()):  # its statistics
        for prefix, builder in zip(prefixes, builders, strict=True):
            builder.finalize(f"{prefix}.idx")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
