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
r"""Pretrain a decoder as a config file says.

    python tools/pretrain.py configs/proxy/ernie_moe.yaml
    python tools/pretrain.py configs/proxy/ernie_moe.yaml \
        clip.name=global_norm train.seed=1 train.output_dir=outputs/global_1

With --check nothing is trained: the recipe is validated and its plan printed,
with the command that launches it and what this machine lacks for it. A recipe
for PaddleFormers (configs/ernie_10b_a1.4b_fp8) is handed over to its launcher.

A run that was killed goes on from its last checkpoint when the same command is
given again; a run that has ended is not repeated.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import NoReturn

from paddle_adagc.checks import check_directory, check_installed
from paddle_adagc.lab.cli.command import (
    check_config_file,
    exit_status,
    make_parser,
)
from paddle_adagc.lab.storage import storage_errors


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: finished, or a sound recipe; 1: the loss stopped being finite; 2:
        bad settings; 3: the run's directory cannot be written to.
    """
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    return exit_status(parser, _pretrain, options)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("pretrain", __doc__)
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
        help="start anew and remove the run that train.output_dir holds",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="validate the config and print its plan instead of training",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare all data and an ended run's record with their checksums",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show PaddleNLP's own log"
    )
    return parser


def _pretrain(options: argparse.Namespace) -> int:
    check_config_file(options.config)
    # Reads configs and PaddleFormers' recipes; part of both extras.
    check_installed("omegaconf", "nlp")
    from paddle_adagc.lab.paddleformers.recipe import is_recipe

    if options.check:
        return check(options.config, options.overrides)
    if is_recipe(options.config):
        return launch(options)
    return train(options)


def check(path: str, overrides: list[str]) -> int:
    """Print the plan of a config.

    Returns:
        0: it is sound, whatever is missing here; 2: it is not.

    Raises:
        ImportError: PaddleNLP is missing.
    """
    check_installed("paddlenlp", "nlp")
    from paddle_adagc.lab.paddleformers.recipe import is_recipe
    from paddle_adagc.lab.plan.check.recipe import check_recipe
    from paddle_adagc.lab.recipes import read_run_config

    of_ernie = is_recipe(path)
    config = read_run_config(path, overrides)
    report = check_recipe(config, path, overrides, with_paddleformers=of_ernie)
    print(report.text())
    return report.exit_status


def launch(options: argparse.Namespace) -> int:
    """Hand a recipe for PaddleFormers over to its launcher.

    Raises:
        ValueError: Bad settings, or an option that it has no use for.
    """
    from paddle_adagc.lab.paddleformers.launch import run_recipe

    if options.overwrite or options.verify or options.verbose:
        raise ValueError(
            f"{options.config} is PaddleFormers': leave out --overwrite, "
            "--verify and --verbose"
        )
    run_recipe(options.config, options.overrides)
    return 0


def train(options: argparse.Namespace) -> int:
    """Train as a config says.

    Returns:
        0: finished; 1: the loss stopped being finite.

    Raises:
        ImportError: PaddleNLP is missing.
        StorageError: The run's directory cannot be written to.
    """
    check_installed("paddlenlp", "nlp")
    from paddlenlp.utils.log import logger as paddlenlp_logger

    from paddle_adagc.lab.train.parse import load_config
    from paddle_adagc.lab.train.run import run_pretraining

    logging.basicConfig(format="%(message)s")
    paddlenlp_logger.set_level("INFO" if options.verbose else "WARNING")
    config = load_config(options.config, options.overrides)
    with storage_errors(config.train.output_dir):
        check_directory("train.output_dir", config.train.output_dir)
        status = run_pretraining(
            config, overwrite=options.overwrite, verify=options.verify
        )
    print(f"{status}: {config.train.output_dir}")
    return 0 if status == "finished" else 1


def run() -> NoReturn:
    """Run the command and leave, together with the run's other processes."""
    code = main()
    if "paddle" not in sys.modules:  # an early answer
        sys.exit(code)
    from paddle_adagc.lab.train.processes import leave

    leave(code)


if __name__ == "__main__":
    run()
