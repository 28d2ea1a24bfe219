# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models to Hugging Face's format and back.

    python tools/convert.py to-hf outputs/ernie_moe ernie_moe_hf
    python tools/convert.py from-hf ernie_moe_hf ernie_moe_again

to-hf takes a run's output directory (its newest complete checkpoint) or one
checkpoint. from-hf writes what a checkpoint holds of the model: config.json and
model_state.pdparams. Every tensor keeps its bits, both ways. Llama, Qwen3,
Mixtral and ERNIE-4.5 MoE.
"""

from __future__ import annotations

import argparse

from adagc_lab import check_installed
from command import add_options, check_folder, exit_status, make_parser

_TO_HF = """
source RUN           run or checkpoint
target OUT           new directory
--tokenizer NAME     bytes, a tokenizer.json, a SentencePiece .model, or a
                     folder with one of them (default: what the run was trained
                     with, if it is known)
--verify             compare all of the source's files with their checksums
"""
_FROM_HF = """
source DIR           config.json and safetensors
target OUT           new directory
--verify             compare all of the source's files with their checksums
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("convert", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    to_hf = commands.add_parser("to-hf", help="to Hugging Face's format")
    from_hf = commands.add_parser("from-hf", help="from Hugging Face's format")
    add_options(to_hf, _TO_HF)
    add_options(from_hf, _FROM_HF)
    options = parser.parse_args(arguments)
    return exit_status(parser, _convert, options)


def _convert(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    check_folder(options.source)
    from adagc_lab.evaluate.saved import from_hf, to_hf
    from paddlenlp.utils.log import logger as paddlenlp_logger

    paddlenlp_logger.set_level("WARNING")
    given = vars(options)
    convert = {"to-hf": to_hf, "from-hf": from_hf}[given.pop("command")]
    print(convert(**given))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
