# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Pretrain a model from a config file.

    python tools/pretrain.py configs/proxy/ernie_moe.yaml
    python tools/pretrain.py configs/proxy/ernie_moe.yaml \
        clip.name=global_norm train.seed=1 train.output_dir=outputs/global_1

--check trains nothing: it validates the config and prints its plan, the command
that launches it and what this machine lacks for it. --print-config prints all
of its values. A recipe for PaddleFormers (configs/ernie_10b_a1.4b_fp8) runs in
PaddleFormers' trainer.

The same command resumes a killed run from its last checkpoint. A finished run
is not repeated; a larger train.max_steps extends it. SIGINT (Ctrl-C),
SIGTERM, SIGHUP and SIGUSR1 save a checkpoint after the step and exit with 130,
143, 129 and 138.

    python tools/pretrain.py CONFIG train.output_dir=RUN \
        clip.name=adagc --fork NEW_DIR --at 300

starts a new run from RUN's checkpoint of step 300 with a changed config.

Exit status: 0 finished, 1 the loss ended above its first value or is not
finite, 2 bad settings or damaged files, 3 the run's directory cannot be written
to.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import NoReturn

from adagc_lab import check_installed
from adagc_lab.storage import check_directory, storage_errors
from command import (
    add_options,
    check_config_file,
    exit_on_signals,
    exit_status,
    import_paddle,
    make_parser,
)

_OPTIONS = """
config               YAML file, see configs/
overrides key=value  change a value of the config, for example
                     train.max_steps=100
--overwrite          start anew and remove the run that train.output_dir holds
--fork NEW_DIR       start a new run there from a checkpoint of the run that
                     train.output_dir holds; values of the config may change,
                     but not parallel, the model's sizes and what is held out
                     for validation, nor from or to precision float8
--at STEP            step of the checkpoint to fork (default: the newest)
--check              validate the config and print its plan instead of training
--print-config       print the config and its defaults, and stop
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives the exit status that stands above."""
    parser = make_parser("pretrain", __doc__)
    add_options(parser, _OPTIONS, overrides={"nargs": "*"})
    options = parser.parse_intermixed_args(arguments)
    if options.at is not None and options.fork is None:
        parser.error(f"--at {options.at} needs --fork NEW_DIR")
    return exit_status(parser, _pretrain, options)


def _pretrain(options: argparse.Namespace) -> int:
    check_config_file(options.config)
    # Reads configs and PaddleFormers' recipes; part of both extras.
    check_installed("omegaconf", "nlp")
    from adagc_lab.paddleformers.recipe import is_recipe

    of_formers = is_recipe(options.config)
    if options.print_config:
        return _print_config(options, of_formers)
    if options.check:
        return _check(options, of_formers)
    return _launch(options) if of_formers else _train(options)


def _check(options: argparse.Namespace, of_formers: bool) -> int:
    """Print the plan of a config, or its mistakes."""
    from adagc_lab import check
    from adagc_lab.paddleformers.recipe import read_run_config

    path, overrides = options.config, options.overrides
    try:
        config = read_run_config(path, overrides)
    except ValueError as error:
        report = check.CheckReport(path, mistakes=str(error).splitlines())
    else:
        of_run = ["--overwrite"] * bool(options.overwrite)
        for name in ("fork", "at"):
            if (value := getattr(options, name)) is not None:
                of_run += [f"--{name}", str(value)]
        report = check.check_recipe(
            config, path, overrides, of_run, with_paddleformers=of_formers
        )
    print(report.text())
    return report.exit_status


def _print_config(options: argparse.Namespace, of_formers: bool) -> int:
    """Print a config's values, defaults too, or those of a recipe, as YAML."""
    import yaml
    from adagc_lab.paddleformers.recipe import load_recipe
    from adagc_lab.train.parse import load_config

    if of_formers:
        values = load_recipe(options.config, options.overrides)
    else:
        config = load_config(options.config, options.overrides)
        values = config.model_dump()
    print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
    return 0


def _launch(options: argparse.Namespace) -> int:
    """Hand a recipe for PaddleFormers over to its launcher."""
    from adagc_lab.paddleformers.launch import run_recipe

    given = [
        f"--{name}" for name in ("overwrite", "fork") if getattr(options, name)
    ]
    if given:
        raise ValueError(
            f"{options.config} is PaddleFormers': leave out {', '.join(given)}"
        )
    run_recipe(options.config, options.overrides)
    return 0


def _train(options: argparse.Namespace) -> int:
    """Train as a config says."""
    check_installed("paddlenlp", "nlp")
    from adagc_lab.train.config import with_output_dir
    from adagc_lab.train.parse import load_config

    config = load_config(options.config, options.overrides)  # before Paddle
    import_paddle()
    from adagc_lab.faults import unreached_faults
    from adagc_lab.record.files import mark_stopped
    from adagc_lab.train import processes
    from adagc_lab.train.console import summarise_run
    from adagc_lab.train.optimizers import unfinished_warm_up
    from adagc_lab.train.run import run_pretraining
    from adagc_lab.train.start import Fork
    from paddle.distributed.fleet.utils.log_util import set_log_level
    from paddlenlp.utils.log import logger as paddlenlp_logger

    logging.basicConfig(format="%(message)s", force=True)
    paddlenlp_logger.set_level("WARNING")
    set_log_level("WARNING")
    fork = None
    if options.fork is not None:
        source, target = Path(config.train.output_dir), Path(options.fork)
        if source.resolve() == target.resolve():
            raise ValueError(
                f"--fork {target} is the run itself: give a new directory"
            )
        fork = Fork(source, options.at)
        config = with_output_dir(config, target)
    warm_up, steps = config.schedule.warmup_steps, config.train.max_steps
    for line in (
        *unfinished_warm_up("schedule.warmup_steps", warm_up, steps),
        *unreached_faults(config.faults, steps),
    ):
        print(f"warning: {line}", file=sys.stderr)
    try:
        with storage_errors(config.train.output_dir):
            check_directory("train.output_dir", config.train.output_dir)
            run_pretraining(config, overwrite=options.overwrite, fork=fork)
    except processes.Stopped as stopped:
        if processes.is_first_process():
            again = [text for text in sys.argv if text != "--overwrite"]
            number = config.parallel.num_processes
            print(stopped.line)
            print(f"next: {processes.launch_lines(again, number)[-1]}")
        return stopped.exit_status
    except Exception:
        mark_stopped(config.train.output_dir)
        raise
    directory = config.train.output_dir
    ending = processes.from_first_process(lambda: summarise_run(directory))
    if processes.is_first_process():
        print("\n".join(ending.lines))
    return 0 if ending.is_sound else 1


def run() -> NoReturn:
    """Run the command and leave, together with the run's other processes."""
    exit_on_signals()
    try:
        code = main()
    except KeyboardInterrupt:  # other processes may still be at work
        print("stopped by SIGINT before training began")
        sys.exit(130)
    if "paddle" not in sys.modules:  # an early answer
        sys.exit(code)
    from adagc_lab.train.processes import leave

    leave(code)


if __name__ == "__main__":
    run()
