# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-report``: what happened in a recorded training."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.watch.folder import folders_beside
from paddle_adagc.watch.page import judge_run, pictures, write_page
from paddle_adagc.watch.reading import read_record
from paddle_adagc.watch.replay import Settings
from paddle_adagc.watch.store import FILE
from paddle_adagc.watch.text import as_text, printable
from paddle_adagc.watch.what_if import DEFAULTS, read_norms, replay_lines

_DESCRIPTION = """\
Write a page about recorded runs. It says what happened, in which tensors it
began, what to do now, and what another setting would have done. The page is one
file that loads nothing. The training may still be running."""
_EXAMPLES = """\
examples:
  adagc-report out/record                    write out/record/report.html
  adagc-report out_a out_b --output ab.html  lay two runs over one another
  adagc-report out --text --step 220         print what happened at step 220
  adagc-report out --what-if lambda_rel=1.5 --what-if beta=0.98
  adagc-report replay norms.csv              replay norms of another trainer
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ±
    try:
        if given[:1] == ["replay"]:
            status = _replay(given[1:])
        else:
            status = _report(make_parser().parse_args(given))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, TypeError, ValueError, csv.Error) as error:
        print(printable(f"adagc-report: {error}"), file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """Make the command's parser."""
    parser = argparse.ArgumentParser(
        "adagc-report",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    said = "a record's folder, or a Trainer's output_dir with one in it"
    add("runs", nargs="+", type=Path, metavar="RUN", help=said)
    said = "print at most 40 lines instead of writing the page"
    add("--text", action="store_true", help=said)
    add("--step", type=int, metavar="N", help="look at this step alone")
    said = (
        "show what AdaGC would have clipped with this argument; may be "
        f"repeated (default: {', '.join(DEFAULTS)})"
    )
    add("--what-if", action="append", metavar="CASE", help=said)
    said = "write the page here (default: report.html in the first record)"
    add("--output", type=Path, metavar="FILE", help=said)
    return parser


def _replay(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "adagc-report replay",
        description="Say what AdaGC would have done with norms of gradients, "
        "recorded before the clip. This needs no Paddle.",
    )
    add = parser.add_argument
    said = "columns step, tensor, norm, or step and one column for each tensor"
    add("norms", type=Path, metavar="CSV", help=said)
    said = "arguments of AdaGC, such as lambda_rel=1.2,init=warmup_ema"
    add("--settings", default="", metavar="CASE", help=said)
    options = parser.parse_args(arguments)
    settings = Settings.of(options.settings)
    found = read_norms(options.norms)
    print("\n".join(map(printable, replay_lines(*found, settings))))
    return 0


def _report(options: argparse.Namespace) -> int:
    if options.text and options.output:
        raise ValueError("--text writes no file: leave out --text or --output")
    cases = options.what_if or DEFAULTS
    pages = [make_page(path, options.step, cases) for path in options.runs]
    names = [page["name"] for page in pages]
    for page, path in zip(pages, options.runs, strict=True):
        if names.count(page["name"]) > 1:
            page["name"] = str(path)
    if options.text:
        print("\n\n".join(map(as_text, pages)))
        return 0
    default = Path(pages[0]["directory"]) / "report.html"
    path = write_page(options.output or default, pages)
    for page in pages:
        print(printable(f"{page['name']}: {page['verdict']['text']}"))
    print(
        f"to read the page, open it in a browser:\n    {printable(str(path))}"
    )
    return 0


def make_page(
    path: Path, step: int | None = None, cases: Sequence[str] = DEFAULTS
) -> dict[str, Any]:
    """Read and judge a record, or the newest of a Trainer's ``output_dir``."""
    inside = [
        folder
        for folder in folders_beside(path / "record")
        if (folder / FILE).stat().st_size
    ]
    run = read_record(inside[-1] if inside else path)
    page = judge_run(run, step, cases)
    if inside or run.directory.name == "record":  # of a Trainer
        page["name"] = run.directory.resolve().parent.name
    return {**page, **pictures(run, page)}


if __name__ == "__main__":
    sys.exit(main())
