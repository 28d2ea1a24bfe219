# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-report``: what happened in a recorded training."""

from __future__ import annotations

import argparse
import os
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
another setting would have done, and what to do now. It is one file that loads
nothing, and the training may still go on."""
_EXAMPLES = """\
examples:
  adagc-report out/record                    write report.html: open it
  adagc-report out_a out_b --output ab.html  one page for two runs
  adagc-report out --text --step 220         print what happened at step 220
  adagc-report out --what-if lambda_rel=1.5 --what-if beta=0.98
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = make_parser().parse_args(arguments)
    try:
        return _report(options)
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, TypeError, ValueError) as error:
        print(f"adagc-report: {error}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """Make the command's parser."""
    parser = argparse.ArgumentParser(
        "adagc-report",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder that adagc-run or Record(...) wrote, or a Trainer's "
        "output_dir with the folder record in it",
    )
    parser.add_argument(
        "--text",
        action="store_true",
        help="print at most 40 lines in place of the page",
    )
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="show this step in place of the run's events",
    )
    parser.add_argument(
        "--what-if",
        action="append",
        metavar="CASE",
        help="what AdaGC with this argument would have clipped, or another "
        "clip: NAME or NAME:ARGUMENT=VALUE; may be given several times "
        f"(default: {', '.join(DEFAULTS)})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page to write (default: report.html)",
    )
    return parser


def _report(options: argparse.Namespace) -> int:
    pages = [
        make_page(path, options.step, options.what_if or DEFAULTS)
        for path in options.runs
    ]
    if options.text and options.output:
        raise ValueError("--text writes no --output: give one of them")
    if options.text:
        print("\n\n".join(map(as_text, pages)))
        return 0
    path = write_page(options.output or Path("report.html"), pages)
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
