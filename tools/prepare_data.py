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
"""

from __future__ import annotations

import argparse
from pathlib import Path

from adagc_lab import check_installed
from adagc_lab.storage import storage_errors
from command import add_options, exit_status, make_parser

_OPTIONS = """
inputs FILE             .json, .jsonl (an object a line) or .txt (a document a
                        line), .gz or not, or folder of them
--output OUTPUT         path of the dataset without ending
--tokenizer TOKENIZER   bytes, tokenizer.json, SentencePiece .model, a folder
                        with one of them, or a model on the Hugging Face hub
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
    for path in options.inputs:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} is not a file")
    if bool(options.inputs) == bool(options.hub):
        raise ValueError("give files, or a dataset by --hub")
    if not 0 <= options.validation_fraction < 1:
        raise ValueError(
            f"--validation-fraction {options.validation_fraction}: not in "
            "[0, 1)"
        )
    from adagc_lab.data.prepare import prepare, read_files, read_hub
    from adagc_lab.data.tokenizers import find_tokenizer

    tokenizer = find_tokenizer(options.tokenizer, options.eos_token)
    texts = read_files(options.inputs, options.text_field)
    if options.hub:
        texts = read_hub(options.hub, options.hub_name, options.text_field)
    with storage_errors(options.output):
        counts = prepare(
            texts, options.output, tokenizer, options.validation_fraction
        )
    for prefix, count in counts.items():
        print(f"{prefix}: {count:,} documents")
    print(f"vocabulary: {tokenizer.vocab_size:,} tokens")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
