# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Tokenise a corpus into a memory-mapped dataset for pretraining.

    python tools/prepare_data.py corpus/*.json.gz --output data/corpus \
        --tokenizer tokenizer.json --validation-fraction 0.001
    python tools/prepare_data.py --hub allenai/c4 --hub-name en \
        --output data/c4 --tokenizer meta-llama/Llama-2-7b-hf

It writes OUTPUT.bin and OUTPUT.idx, with --validation-fraction also
OUTPUT_validation.bin and .idx, and a manifest, OUTPUT.manifest.json. The same
command resumes after a kill. It needs disk space for the tokens twice. To train
on the result:

    data: {kind: mmap, prefix: OUTPUT, validation_prefix: OUTPUT_validation}
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from adagc_lab import check_installed
from adagc_lab.data.sources import TEXT_FORMATS
from adagc_lab.storage import storage_errors
from command import (
    ERRORS,
    add_options,
    exit_status,
    make_parser,
)

_OPTIONS = """
inputs FILE             file of text or JSON lines, .gz or not, or folder of
                        them
--output OUTPUT         path of the dataset without ending
--tokenizer TOKENIZER   bytes, tokenizer.json, SentencePiece .model, a folder
                        with one of them, or a model on the Hugging Face hub
--eos-token EOS_TOKEN   after each document; default: the tokenizer's
--format                jsonl: a JSON object a line; lines: a document a line;
                        text: a document a file; auto (default): .jsonl and
                        .json as jsonl, .txt as lines
--text-field TEXT_FIELD
                        field of the JSON object; default: text
--validation-fraction VALIDATION_FRACTION
                        share of the documents, by a hash of their text, for
                        OUTPUT_validation; default: 0
--on-error              at a bad document: stop (default), or leave it out and
                        count it
--workers NUM_WORKERS   processes; default: one a core
"""
_HUB_OPTIONS = """
--hub DATASET           name, or local folder
--hub-name NAME         its configuration
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 130: stopped by the keyboard."""
    parser = make_parser("prepare_data", __doc__)
    add_options(
        parser,
        _OPTIONS,
        inputs={"nargs": "*"},
        output={"required": True},
        tokenizer={"required": True},
        format={
            "action": "store",
            "dest": "text_format",
            "choices": TEXT_FORMATS,
        },
        validation_fraction={"type": float},
        on_error={"action": "store", "choices": ("stop", "skip")},
        workers={"dest": "num_workers", "type": int},
    )
    group = parser.add_argument_group(
        "instead of FILE, a dataset that Hugging Face datasets streams"
    )
    add_options(group, _HUB_OPTIONS)
    options = parser.parse_args(arguments)
    options.command = ["prepare_data.py", *(arguments or sys.argv[1:])]
    try:
        return exit_status(parser, _prepare, options, (*ERRORS, RuntimeError))
    except KeyboardInterrupt:
        print("stopped: the same command resumes", file=sys.stderr)
        return 130


def _prepare(options: argparse.Namespace) -> int:
    check_installed("pydantic", "nlp")
    for path in options.inputs:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} is not a file")
    from adagc_lab.data.config import PrepareConfig
    from adagc_lab.data.prepare import prepare

    given = {k: v for k, v in vars(options).items() if v is not None}
    command = given.pop("command")
    config = PrepareConfig(**given | {"inputs": tuple(options.inputs)})
    with storage_errors(f"{config.output}.parts"):
        manifest, was_there = prepare(config, command)
    if was_there:
        print(f"{config.output}: finished before, with the same settings")
    _report(manifest)
    return 0


def _report(manifest: dict[str, Any]) -> None:
    for split in ("train", "validation"):
        if part := manifest.get(split):
            print(
                f"{split}: {part['prefix']}, {part['num_documents']:,} "
                f"documents, {part['num_tokens']:,} tokens ({part['dtype']})"
            )
    if manifest["num_empty"]:
        print(f"left out: {manifest['num_empty']:,} documents without tokens")
    if manifest["num_bad"]:
        print(f"left out: {manifest['num_bad']:,} bad documents, among them")
        for message in manifest["bad"]:
            print(f"  {message}")


if __name__ == "__main__":
    raise SystemExit(main())
