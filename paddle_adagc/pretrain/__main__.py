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
"""Pretrain a decoder as a config file says.

    python tools/pretrain.py configs/proxy/ernie_moe.yaml
    python tools/pretrain.py configs/proxy/ernie_moe.yaml \
        clip.name=global_norm train.seed=1 train.output_dir=outputs/global_1

A run that was killed goes on from its last checkpoint when the same command is
given again; a run that has ended is not repeated.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import NoReturn


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: finished; 1: the loss stopped being finite; 2: bad settings.
    """
    parser = argparse.ArgumentParser(
        prog="pretrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", help="YAML file, see configs/")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="change a value of the config, for example train.max_steps=100",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="start anew and remove what train.output_dir holds",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show PaddleNLP's own log"
    )
    options = parser.parse_args(arguments)
    from paddlenlp.utils.log import logger as paddlenlp_logger

    from paddle_adagc.pretrain.parse import load_config
    from paddle_adagc.pretrain.run import run_pretraining

    logging.basicConfig(format="%(message)s")
    paddlenlp_logger.set_level("INFO" if options.verbose else "WARNING")
    try:
        config = load_config(options.config, options.overrides)
        status = run_pretraining(config, overwrite=options.overwrite)
    except (FileNotFoundError, FileExistsError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"{status}: {config.train.output_dir}")
    return 0 if status == "finished" else 1


def run() -> NoReturn:
    """Run the command and leave, together with the run's other processes."""
    code = main()
    from paddle_adagc.pretrain.processes import leave

    leave(code)


if __name__ == "__main__":
    run()
