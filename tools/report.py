# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the HTML report of your own runs, one or several.

    python tools/report.py outputs/adagc
    python tools/report.py outputs/globalgc outputs/adagc --output report.html

RUN is a directory that tools/pretrain.py wrote (train.output_dir), finished
or still running. Runs that differ in the seed alone are seeds of one method;
methods with the same seeds are compared seed by seed, the others with the
first one. The page is one file that loads nothing. It needs the extra
[report].
"""

from __future__ import annotations

import argparse
from pathlib import Path

from adagc_lab import check_installed
from command import (
    add_options,
    check_output_file,
    check_run,
    exit_status,
    make_parser,
)

_OPTIONS = """
runs RUN        run directory
--output FILE   the page to write (default: %(default)s)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("report", __doc__)
    add_options(
        parser,
        _OPTIONS,
        runs={"nargs": "+", "type": Path},
        output={"type": Path, "default": Path("report.html")},
    )
    return exit_status(parser, _report, parser.parse_args(arguments))


def _report(options: argparse.Namespace) -> int:
    for module in ("matplotlib", "pandas", "scipy"):
        check_installed(module, "report")
    for path in options.runs:
        check_run(path)
    check_output_file("--output", options.output)
    from adagc_lab.report.experiment import compare_runs
    from adagc_lab.report.page import write_report

    experiment = compare_runs(options.runs)
    path = write_report(options.output, "Training report", [experiment])
    print(f"report: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
