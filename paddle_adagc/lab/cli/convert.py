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
import math

from paddle_adagc.checks import check_installed
from paddle_adagc.lab.cli.command import (
    add_tokenizer,
    check_folder,
    exit_status,
    make_parser,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("convert", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    to_hf = commands.add_parser("to-hf", help="to Hugging Face's format")
    to_hf.add_argument("source", metavar="RUN", help="run or checkpoint")
    to_hf.add_argument("target", metavar="OUT", help="new directory")
    add_tokenizer(to_hf, "what the run was trained with, if it is known")
    to_hf.add_argument(
        "--max-shard-gb",
        type=float,
        default=5.0,
        metavar="GB",
        help="a file holds so many 10**9 bytes at most (default: %(default)s)",
    )
    from_hf = commands.add_parser("from-hf", help="from Hugging Face's format")
    add = from_hf.add_argument
    add("source", metavar="DIR", help="config.json and safetensors")
    add("target", metavar="OUT", help="new directory")
    for command in (to_hf, from_hf):
        command.add_argument(
            "--verify",
            action="store_true",
            help="compare all of the source's files with their checksums",
        )
    options = parser.parse_args(arguments)
    if options.command == "to-hf" and not (0 < options.max_shard_gb < math.inf):
        parser.error(f"--max-shard-gb {options.max_shard_gb}: not positive")
    return exit_status(parser, _convert, options)


def _convert(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    check_folder(options.source)
    from paddlenlp.utils.log import logger as paddlenlp_logger

    from paddle_adagc.lab.evaluate.convert import from_hf, to_hf

    paddlenlp_logger.set_level("WARNING")
    if options.command == "from-hf":
        done = from_hf(options.source, options.target, verify=options.verify)
    else:
        done = to_hf(
            options.source,
            options.target,
            tokenizer=options.tokenizer,
            max_shard_bytes=int(options.max_shard_gb * 10**9),
            verify=options.verify,
        )
    print(done)
    return 0
