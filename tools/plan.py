# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
r"""Plan a run before you start it: sizes, memory, communication.

    python tools/plan.py configs/ernie_10b_a1.4b_fp8/adagc.yaml
    python tools/plan.py configs/llama2_7b/adagc.yaml --gpus 1024 \
        train.batch_size=1 --interconnect ib_gb_per_s=25

Prints parameters, tensors and gamma's bytes, the memory of a GPU on every
pipeline stage, and what GlobalGC and AdaGC communicate in a step and how long
that takes on 8 to 16,384 GPUs. No GPU is needed and no model allocated; the
run's model, fleet's groups and the clips are those of the real run. It needs
the extra [nlp] or [formers].
"""

from __future__ import annotations

import argparse

from adagc_lab import check_installed
from command import (
    add_options,
    check_config_file,
    check_overrides,
    exit_status,
    make_parser,
)

_OPTIONS = """
config                    YAML file, see configs/
overrides key=value       change a value of the config, for example
                          train.batch_size=1
--gpus N                  plan for N GPUs: the data-parallel or sharding degree
                          follows
--recompute               layers keep their input and recompute the rest
--interconnect key=value  change a number of the interconnect (again for each),
                          for example ib_gb_per_s=25
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("plan", __doc__)
    add_options(
        parser,
        _OPTIONS,
        overrides={"nargs": "*"},
        interconnect={"action": "append", "default": []},
    )
    options = parser.parse_intermixed_args(arguments)
    return exit_status(parser, _plan, options)


def _plan(options: argparse.Namespace) -> int:
    check_installed("omegaconf", "nlp")  # part of both extras
    check_config_file(options.config)
    check_overrides(options.overrides)
    from adagc_lab.plan.costs import parse_interconnect
    from adagc_lab.plan.plan import plan_run, render

    plan = plan_run(
        options.config,
        options.overrides,
        num_gpus=options.gpus,
        interconnect=parse_interconnect(options.interconnect),
        recompute=options.recompute,
    )
    print(render(plan))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
