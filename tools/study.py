# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train the runs of a page about a mechanism; write its figures and tables.

    python tools/study.py creep
    python tools/study.py price --check

Page: docs/NAME.md; results: results/NAME.jsonl. One development seed, on one
core. The same command resumes after a kill. --check trains nothing; its exit
status is 1 if page or figures are not what the results give.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import command
from adagc_lab import check_installed

from paddle_adagc.files import atomic_write

NAMES = ("creep", "price")
_OPTIONS = """
study  its page: creep or price
--output OUTPUT   folder for the runs (default: outputs/NAME)
--check           train nothing, compare page and figures with the results
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = command.make_parser("study", __doc__)
    study: dict[str, Any] = {"choices": NAMES}
    command.add_options(parser, _OPTIONS, study=study, output={"type": Path})
    options = parser.parse_args(arguments)
    return command.exit_status(parser, _study, options)


def _study(options: argparse.Namespace) -> int:
    from adagc_lab.studies.creep import CREEP
    from adagc_lab.studies.price import PRICE

    study = {"creep": CREEP, "price": PRICE}[options.study]
    if not options.check:
        check_installed("paddlenlp", "nlp")
        study.train(options.output or Path("outputs", study.name))
    stale = study.stale_files()
    if options.check:
        for path in stale:
            print(f"{path.name}: not what the results give", file=sys.stderr)
        return int(bool(stale))
    for path, text in stale.items():
        atomic_write(path, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
