# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Look at one step of a run: loss, tensors, and the text of its batch.

    python tools/inspect_run.py outputs/adagc
    python tools/inspect_run.py outputs/adagc --step 1431

RUN is a directory that tools/pretrain.py wrote (train.output_dir), finished
or still running. Without --step it is the worst step of the worst alarm. N
counts from 0, as metrics.jsonl does. What stands before the batch is what
adagc-report --text says of the step. The batch is read again from the run's
data, as it was before any fault.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from adagc_lab import check_installed
from command import add_options, check_run, exit_status, make_parser

_OPTIONS = """
run RUN           run directory
--step N          step, from 0 (default: the alarm's)
--tokenizer NAME  bytes, a tokenizer.json, a SentencePiece .model, or a folder
                  with one of them (default: bytes if the data is that, else
                  token ids)
--all             every sample in full, not 8 and their beginning
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("inspect_run", __doc__)
    add_options(parser, _OPTIONS, run={"type": Path})
    return exit_status(parser, _inspect, parser.parse_args(arguments))


def _inspect(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    check_run(options.run)
    from adagc_lab.evaluate.step import step_text

    text = step_text(
        options.run, options.step, options.tokenizer, shows_all=options.all
    )
    print(text.rstrip())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
