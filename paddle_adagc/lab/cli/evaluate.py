# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Score a trained model: perplexity, and tasks of lm-evaluation-harness.

    python tools/evaluate.py outputs/llama2_7b --tasks paper
    python tools/evaluate.py outputs/ernie_moe --perplexity
    python tools/evaluate.py outputs/ernie_moe --tasks my_task \\
        --include-path my_tasks --num-fewshot 0

MODEL is a run's output directory (its newest complete checkpoint), a
checkpoint, or a directory in Hugging Face's format. --tasks paper stands for
ARC-E, ARC-C, BoolQ, HellaSwag, OBQA, PIQA, WinoGrande, MMLU and SciQ, with the
paper's numbers beside; the harness downloads their data. Tasks need the extra
[eval].
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from paddle_adagc.checks import check_installed, check_output_file
from paddle_adagc.files import atomic_write_json
from paddle_adagc.lab.cli.command import (
    add_tokenizer,
    check_config_file,
    check_folder,
    exit_status,
    make_parser,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("evaluate", __doc__)
    _add_options(parser)
    options = parser.parse_args(arguments)
    if not options.tasks and not options.perplexity:
        parser.error("nothing to score: give --tasks or --perplexity")
    return exit_status(parser, _evaluate, options)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of ``EvaluationConfig``, and the output."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="what to score")
    add("--tasks", nargs="+", default=[], metavar="TASK", help="or 'paper'")
    add(
        "--num-fewshot",
        nargs="+",
        type=int,
        default=[0, 2],
        metavar="N",
        help="solved examples before each question (default: 0 and 2)",
    )
    add("--include-path", metavar="DIR", help="task files (YAML) of your own")
    add("--limit", type=int, metavar="N", help="first N examples of each task")
    add(
        "--perplexity",
        action="store_true",
        help="perplexity on the validation part of the run's own data",
    )
    add(
        "--data",
        metavar="CONFIG",
        help="run config whose data --perplexity takes",
    )
    add(
        "--validation-size",
        type=int,
        metavar="N",
        help="samples that --perplexity takes",
    )
    add_tokenizer(parser, "the model's, if it is known")
    add(
        "--add-special-tokens",
        dest="adds_special_tokens",
        action="store_true",
        help="begin texts with the tokenizer's special token, for models "
        "trained elsewhere; models trained here never saw it",
    )
    add("--batch-size", type=int, default=8, metavar="N", help="default: 8")
    add("--max-length", type=int, metavar="N", help="longest input in tokens")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON to write (default: MODEL-evaluation.json)",
    )
    add("--json", action="store_true", help="print JSON instead of tables")
    add(
        "--verify",
        action="store_true",
        help="compare the model's files with their checksums",
    )
    add("--verbose", action="store_true", help="show the harness' log")


def _evaluate(options: argparse.Namespace) -> int:
    _check(options)
    from paddlenlp.utils.log import logger as paddlenlp_logger

    from paddle_adagc.lab.evaluate.run import (
        EvaluationConfig,
        default_output,
        evaluate,
        to_markdown,
    )

    given = vars(options)
    output, as_json = given.pop("output"), given.pop("json")
    level = logging.INFO if given.pop("verbose") else logging.ERROR
    logging.getLogger("lm_eval").setLevel(level)
    paddlenlp_logger.set_level("WARNING")
    output = output or default_output(options.model)
    for name in ("tasks", "num_fewshot"):
        given[name] = tuple(given[name])
    config = EvaluationConfig(**given, shows_bar=sys.stderr.isatty())
    check_output_file("--output", output)
    result = evaluate(config)
    print(json.dumps(result, indent=1) if as_json else to_markdown(result))
    atomic_write_json(output, result, indent=1)
    if not as_json:
        print(f"results: {output}")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Check what needs no import: extras and paths."""
    check_installed("paddlenlp", "nlp")
    if options.tasks:
        check_installed("lm_eval", "eval")
    check_folder(options.model)
    if options.include_path is not None:
        check_folder(options.include_path)
    if options.data is not None:
        check_config_file(options.data)
    if options.output is not None:
        check_output_file("--output", options.output)
