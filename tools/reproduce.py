# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Reproduce a comparison: run its grid of paired runs, write its report.

    python tools/reproduce.py quickstart

Runs that have ended are not run again, and a killed command goes on where it
was when it is given again. TARGET names a file in configs/experiments.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

GRIDS = Path(__file__).resolve().parent.parent / "configs" / "experiments"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    targets = sorted(path.stem for path in GRIDS.glob("*.yaml"))
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", metavar="TARGET", choices=targets, help=", ".join(targets)
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs"),
        help="folder for runs and report (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        help="length of every run, instead of the configs'; faults move along",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="runs at a time (default: %(default)s, the number of cores)",
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1 run at a time")
    from paddle_adagc.report.reproduce import reproduce

    try:
        report = reproduce(
            GRIDS / f"{options.target}.yaml",
            options.output / options.target,
            max_steps=options.steps,
            num_jobs=options.jobs,
        )
    except (RuntimeError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"report: {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
