# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretrain ERNIE through PaddleFormers as a recipe says.

On every node of the cluster, for 32 nodes of 8 GPUs (folders on a file system
that all of them see):

    python -m paddle.distributed.launch --nnodes 32 --master HOST:PORT \\
        --gpus 0,1,2,3,4,5,6,7 tools/pretrain.py \\
        configs/ernie_10b_a1.4b_fp8/adagc.yaml max_steps=60000

(tools/pretrain.py hands recipes to this command.) The same command resumes
from the newest complete checkpoint.
"""

from __future__ import annotations

import argparse
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: finished; 2: bad settings.
    """
    parser = argparse.ArgumentParser(
        prog="python -m paddle_adagc.lab.paddleformers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "recipe", help="YAML file, see configs/ernie_10b_a1.4b_fp8"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="change a value, for example max_steps=60000",
    )
    options = parser.parse_args(arguments)
    from paddle_adagc.lab.paddleformers.launch import run_recipe

    try:
        run_recipe(options.recipe, options.overrides)
    except (FileNotFoundError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
