# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, as ratios within one interleaved run.

    python tools/benchmark.py clip
    python tools/benchmark.py step
    python tools/benchmark.py host
    python tools/benchmark.py collectives
    python tools/benchmark.py watch

clip: a clip step on the tensors of the paper's models, against Paddle's own
clips, a loop that waits for every tensor, and the speed of memory.
host: host time of a clip step on many tiny tensors beside that of AdamW's own
loop; for the CUDA kernels with a driver that returns at once.
step: whole training steps of the proxies.
collectives: what GlobalGC (fleet's HybridParallelClipGrad) and AdaGC
communicate in a clip step, counted on real processes over gloo, layout by
layout.
watch: what a record adds to a clip's step, its copies and files included.

Set OMP_NUM_THREADS to choose the number of threads; the default is 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from adagc_lab import check_installed
from command import (
    ERRORS,
    ROOT,
    add_options,
    check_config_file,
    exit_status,
    make_parser,
)

from paddle_adagc.checks import check_choice

CONFIGS = ROOT / "configs" / "proxy"
ERNIE = CONFIGS / "ernie_moe.yaml"
PROXIES = [CONFIGS / "llama_low_noise.yaml", ERNIE]
SHARES = (0.1, 1.0)  # of the tensors that are clipped
TENSORS = (196, 3828)  # numbers of tensors of `host`
RINGS = 3  # copies of 64 steps that `watch` times
WATCHED = "ernie-10b-a1.4b"

_OPTIONS = {
    "clip": """
--lists MODEL     models of the paper (default: all; a wrong name lists them)
--dtype DTYPE     dtype of the gradients (default: %(default)s)
--repetitions N   timings per clip (default: %(default)s)
""",
    "host": """
--repetitions N   timings of each (default: %(default)s)
""",
    "step": """
--configs YAML    run configs (default: llama_low_noise and ernie_moe)
--steps N         timed steps per clip (default: %(default)s)
""",
    "watch": "",
    "collectives": """
--config CONFIG   run config (default: configs/proxy/ernie_moe.yaml)
""",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("benchmark", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, shown in _OPTIONS.items():
        default = 15 if name == "clip" else 40
        command = commands.add_parser(name)
        if not shown:
            continue
        add_options(
            command,
            shown,
            lists={"nargs": "*"},
            dtype={"choices": ["float32", "bfloat16"], "default": "float32"},
            repetitions={"type": _at_least_two, "default": default},
            configs={"nargs": "*", "type": Path, "default": PROXIES},
            steps={"type": _at_least_two, "default": 200},
            config={"type": Path, "default": ERNIE},
        )
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return exit_status(parser, _run, options, (*ERRORS, RuntimeError))


def _at_least_two(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: give an integer above 1")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    """Print the tables as they are made."""
    check_installed("paddlenlp", "nlp")
    for table in globals()[f"measure_{options.command}"](options):
        print(table, flush=True)
    return 0


def measure_clip(options: argparse.Namespace) -> Iterator[str]:
    """Time a clip step on the tensors of the paper's models."""
    from adagc_lab.benchmark import clip_step

    names = options.lists or clip_step.LISTS
    for name in names:
        check_choice("--lists", name, clip_step.LISTS)
    for name, share in itertools.product(names, SHARES):
        shapes = clip_step.recipe_shapes(name)
        rows = clip_step.compare(
            shapes, share, options.repetitions, options.dtype
        )
        yield (
            f"\n{name}: {rows[0].num_tensors:,} tensors, "
            f"{rows[0].num_values / 1e6:.0f}M values, {share:.0%} of the "
            f"tensors clipped\n\n{clip_step.to_markdown(rows)}"
        )


def measure_host(options: argparse.Namespace) -> Iterator[str]:
    """Time the host's part of a clip step on many tiny tensors."""
    from adagc_lab.benchmark import host_time

    yield host_time.to_markdown(
        {n: host_time.compare(n, options.repetitions) for n in TENSORS}
    )


def measure_step(options: argparse.Namespace) -> Iterator[str]:
    """Time whole training steps of run configs."""
    for path in options.configs:
        check_config_file(path)
    from adagc_lab.benchmark import training_step
    from adagc_lab.train.parse import load_config

    for path in options.configs:
        rows = training_step.compare(load_config(path), options.steps)
        yield f"\n{path}\n\n{training_step.to_markdown(rows)}"


def measure_collectives(options: argparse.Namespace) -> Iterator[str]:
    """Count the collectives of a clip step, layout by layout."""
    check_config_file(options.config)
    from adagc_lab.benchmark import collectives
    from adagc_lab.train.parse import load_config

    load_config(options.config)  # before the workers, who would not say it
    yield collectives.to_markdown(collectives.measure(options.config))


def measure_watch(options: argparse.Namespace) -> Iterator[str]:
    """Time what a record adds to a clip's step."""
    from adagc_lab.benchmark import watch

    yield watch.to_markdown(watch.compare(WATCHED, RINGS))


if __name__ == "__main__":
    raise SystemExit(main())
