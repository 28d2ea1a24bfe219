# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write a trained Llama model in Hugging Face's format.

    python tools/convert.py outputs/llama2_1.3b/adagc llama2_1.3b_hf

RUN is a run's output directory (its newest complete checkpoint) or one
checkpoint. Put the tokenizer's files beside what it writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from adagc_lab import check_installed
from command import add_options, check_folder, exit_status, make_parser

_OPTIONS = """
source RUN           run or checkpoint
target OUT           new directory
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("convert", __doc__)
    add_options(parser, _OPTIONS)
    return exit_status(parser, _convert, parser.parse_args(arguments))


def _convert(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    check_folder(options.source)
    if Path(options.target).exists():
        raise FileExistsError(f"{options.target} exists: name a new folder")
    from adagc_lab.evaluate.saved import load_saved
    from adagc_lab.models.hf import export_llama
    from paddlenlp.utils.log import logger as paddlenlp_logger

    paddlenlp_logger.set_level("WARNING")
    saved = load_saved(options.source)
    count = export_llama(saved.model, Path(options.target))
    print(f"{options.target}: Llama of step {saved.step}, {count} tensors")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
