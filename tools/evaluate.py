# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure the perplexity of a trained model on validation data.

    python tools/evaluate.py outputs/ernie_moe

MODEL is a run's output directory (its newest complete checkpoint) or a
checkpoint. For benchmarks, export the model (tools/convert.py) and run
lm-evaluation-harness on that.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import command
from adagc_lab import check_installed
from adagc_lab.storage import atomic_write_json

_OPTIONS = """
model MODEL             what to score
--data CONFIG           run config with the data (default: the run's own data)
--output FILE           JSON to write (default: MODEL-evaluation.json)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = command.make_parser("evaluate", __doc__)
    command.add_options(parser, _OPTIONS, output={"type": Path})
    options = parser.parse_args(arguments)
    return command.exit_status(parser, _evaluate, options)


def _evaluate(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    command.check_folder(options.model)
    if options.data is not None:
        command.check_config_file(options.data)
    output = options.output
    if output is None:  # beside the model's folder, which stays as it is
        folder = Path(options.model).absolute()
        output = folder.with_name(f"{folder.name}-evaluation.json")
    command.check_output_file("--output", output)
    from adagc_lab.evaluate.perplexity import evaluate, to_text
    from paddlenlp.utils.log import logger

    logger.set_level("WARNING")
    result = evaluate(options.model, data=options.data)
    print(to_text(result))
    atomic_write_json(output, result, indent=1)
    print(f"results: {output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
