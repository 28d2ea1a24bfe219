# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Score a trained model: perplexity, and tasks of lm-evaluation-harness.

    python tools/evaluate.py outputs/llama2_7b --tasks paper
    python tools/evaluate.py outputs/ernie_moe --perplexity
    python tools/evaluate.py outputs/ernie_moe --tasks my_task \\
        --include-path my_tasks --num-fewshot 0

MODEL is a run's output directory (its newest complete checkpoint), a
checkpoint, or a directory in Hugging Face's format. --tasks paper stands for
ARC-E, ARC-C, BoolQ, HellaSwag, OBQA, PIQA, WinoGrande, MMLU and SciQ; the
harness downloads their data. Tasks need the extra [eval].
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import command

from paddle_adagc.checks import check_installed, check_output_file
from paddle_adagc.files import atomic_write_json

_OPTIONS = """
model MODEL             what to score
--tasks TASK            or 'paper'
--num-fewshot N         solved examples before each question (default: 0 and 2)
--include-path DIR      task files (YAML) of your own
--limit N               first N examples of each task
--perplexity            perplexity on the validation part of the run's own data
--data CONFIG           run config whose data --perplexity takes
--validation-size N     samples that --perplexity takes
--tokenizer NAME        bytes, a tokenizer.json, a SentencePiece .model, or a
                        folder with one of them (default: the model's, if it is
                        known)
--add-special-tokens    begin texts with the tokenizer's special token, for
                        models trained elsewhere; models trained here never saw
                        it
--batch-size N          default: 8
--max-length N          longest input in tokens
--output FILE           JSON to write (default: MODEL-evaluation.json)
--json                  print JSON instead of tables
--verify                compare the model's files with their checksums
--verbose               show the harness' log
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = command.make_parser("evaluate", __doc__)
    command.add_options(
        parser,
        _OPTIONS,
        tasks={"nargs": "+", "default": []},
        num_fewshot={"nargs": "+", "default": [0, 2]},
        add_special_tokens={"dest": "adds_special_tokens"},
        batch_size={"default": 8},
        output={"type": Path},
    )
    options = parser.parse_args(arguments)
    if not options.tasks and not options.perplexity:
        parser.error("nothing to score: give --tasks or --perplexity")
    if min(options.num_fewshot) < 0:
        parser.error(f"--num-fewshot {min(options.num_fewshot)}: not below 0")
    return command.exit_status(parser, _evaluate, options)


def _evaluate(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    if options.tasks:
        check_installed("lm_eval", "eval")
    command.check_folder(options.model)
    if options.include_path is not None:
        command.check_folder(options.include_path)
    if options.data is not None:
        command.check_config_file(options.data)
    if options.output is not None:
        check_output_file("--output", options.output)
    from paddlenlp.utils.log import logger as paddlenlp_logger

    from paddle_adagc.lab.evaluate import run

    given = vars(options)
    output, as_json = given.pop("output"), given.pop("json")
    level = logging.INFO if given.pop("verbose") else logging.ERROR
    logging.getLogger("lm_eval").setLevel(level)
    paddlenlp_logger.set_level("WARNING")
    output = output or run.default_output(options.model)
    check_output_file("--output", output)
    result = run.evaluate(**given, shows_bar=sys.stderr.isatty())
    print(json.dumps(result, indent=1) if as_json else run.to_markdown(result))
    atomic_write_json(output, result, indent=1)
    if not as_json:
        print(f"results: {output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
