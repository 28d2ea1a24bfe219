# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-report``: what happened in a recorded training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.files import atomic_write
from paddle_adagc.record.files import RECORD, read_record
from paddle_adagc.report.analysis import analyse, finite
from paddle_adagc.report.page import html_page
from paddle_adagc.report.text import as_text
from paddle_adagc.report.what_if import DEFAULTS, what_if

_DESCRIPTION = """\
Write one page about recorded runs: what happened, which tensors began it, what
another setting would have done, and what to do now. RUN is a folder of
Record("runs/a", ...), or one that adagc-run has recorded into; it may still be
written. The page is one file that loads nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = make_parser().parse_args(arguments)
    try:
        return _report(options)
    except (OSError, TypeError, ValueError) as error:
        print(f"adagc-report: {error}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """Make the command's parser."""
    parser = argparse.ArgumentParser("adagc-report", description=_DESCRIPTION)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--text", action="store_true", help="print it instead")
    parser.add_argument(
        "--step", type=int, metavar="N", help="look at this step"
    )
    parser.add_argument(
        "--what-if",
        action="append",
        metavar="CASE",
        help="lambda_rel=1.2, or another clip: zclip, zclip:z_thres=2; may be "
        f"given several times (default: {', '.join(DEFAULTS)})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page to write (default: %(default)s)",
    )
    return parser


def _report(options: argparse.Namespace) -> int:
    pages = [
        make_page(path, options.step, options.what_if or DEFAULTS)
        for path in options.runs
    ]
    if options.text:
        print("\n\n".join(map(as_text, pages)))
        return 0
    path = write_page(options.output, pages)
    for page in pages:
        print(f"{page['name']}: {page['verdict']['text']}")
    print(f"page: {path}")
    return 0


def make_page(
    path: Path, step: int | None = None, cases: Sequence[str] = DEFAULTS
) -> dict[str, Any]:
    """Read and analyse a record, or the one in the folder ``record`` there."""
    inside = path / "record"
    run = read_record(inside if (inside / RECORD).exists() else path)
    page = analyse(run, step)
    if run.directory.name == "record":  # of a Trainer
        page["name"] = run.directory.absolute().parent.name
    event = None if page["worst"] is None else page["events"][page["worst"]]
    page["what_if"] = finite(what_if(run, cases, event))
    return page


def write_page(output: Path, pages: Sequence[dict[str, Any]]) -> Path:
    """Write the page, whole or not at all."""
    script = Path(__file__).parent / "assets" / "report.js"
    return atomic_write(output, html_page("adagc-report", pages, script))


if __name__ == "__main__":
    sys.exit(main())
