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
import logging
from pathlib import Path

import command
from adagc_lab import check_installed

from paddle_adagc.files import atomic_write_json

_OPTIONS = """
model MODEL             what to score
--tasks TASK            or 'paper'
--num-fewshot N         solved examples before each question (default: 0 and 2)
--include-path DIR      task files (YAML) of your own, in place of the harness'
--limit N               first N examples of each task
--perplexity            perplexity on the validation part of the run's own data
--data CONFIG           run config whose data --perplexity takes
--tokenizer NAME        bytes, a tokenizer.json, a SentencePiece .model, or a
                        folder with one of them (default: the model's, if it is
                        known)
--batch-size N          default: 8
--output FILE           JSON to write (default: MODEL-evaluation.json)
--verify                compare the model's files with their checksums
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = command.make_parser("evaluate", __doc__)
    command.add_options(
        parser,
        _OPTIONS,
        tasks={"nargs": "+", "default": []},
        num_fewshot={"nargs": "+", "default": [0, 2]},
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
    from adagc_lab.evaluate import run
    from paddlenlp.utils.log import logger as paddlenlp_logger

    given = vars(options)
    output = given.pop("output")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    paddlenlp_logger.set_level("WARNING")
    if output is None:  # beside the model's folder, which stays as it is
        folder = Path(options.model).absolute()
        output = folder.with_name(f"{folder.name}-evaluation.json")
    command.check_output_file("--output", output)
    result = run.evaluate(**given)
    print(run.to_markdown(result))
    atomic_write_json(output, result, indent=1)
    print(f"results: {output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
