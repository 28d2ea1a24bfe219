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
"""Benchmarks.

    python tools/benchmark.py comm

comm: what GlobalGC (fleet's HybridParallelClipGrad) and AdaGC communicate in a
clip step, counted on real fleet processes over gloo, layout by layout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

CONFIG = Path(__file__).resolve().parent.parent / "configs/proxy/ernie_moe.yaml"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    comm = commands.add_parser(
        "comm", help="collectives and bytes of a clip step"
    )
    comm.add_argument(
        "--config", type=Path, default=CONFIG, help="default: %(default)s"
    )
    comm.add_argument(
        "--layouts", nargs="*", metavar="LAYOUT", help="default: all of them"
    )
    options = parser.parse_args(arguments)
    from paddle_adagc.report.communication import LAYOUTS, measure, to_markdown

    chosen = options.layouts or list(LAYOUTS)
    unknown = [name for name in chosen if name not in LAYOUTS]
    if unknown:
        parser.error(f"unknown layouts {unknown}: choose of {list(LAYOUTS)}")
    try:
        rows = measure(options.config, {name: LAYOUTS[name] for name in chosen})
    except RuntimeError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(to_markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
