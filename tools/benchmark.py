# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, as ratios within one interleaved run.

    python tools/benchmark.py clip
    python tools/benchmark.py step
    python tools/benchmark.py units
    python tools/benchmark.py host
    python tools/benchmark.py collectives

clip: a clip step on the tensors of the paper's models, against Paddle's own
clips, a loop that waits for every tensor, and the speed of memory; then what
each backend costs on a GPU, by count.
units: AdaGC on experts in one parameter per layer, against as many parameters.
host: host time of a clip step on many tiny tensors beside that of AdamW's own
loop; for the CUDA kernels with a driver that returns at once.
step: whole training steps of the proxies.
collectives: what GlobalGC (fleet's HybridParallelClipGrad) and AdaGC
communicate in a clip step, counted on real processes over gloo, layout by
layout.

Set OMP_NUM_THREADS to choose the number of threads; the default is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from command import (
    ERRORS,
    ROOT,
    add_options,
    check_config_file,
    exit_status,
    make_parser,
)

from paddle_adagc.checks import check_choice, check_installed

CONFIGS = ROOT / "configs" / "proxy"
ERNIE = CONFIGS / "ernie_moe.yaml"
PROXIES = [CONFIGS / "llama_low_noise.yaml", ERNIE]


_JSON = """
--json            print JSON instead of tables
"""
_CLIP = """
--lists MODEL     models of the paper (default: all; a wrong name lists them)
--shares SHARE    shares of the tensors that are clipped (default: 0.1 1)
--dtype           dtype of the gradients (default: float32)
--repetitions N   timings per clip (default: 15)
"""
_UNITS = """
--repetitions N   timings of each (default: 40)
"""
_HOST = """
--tensors N       numbers of tensors (default: 196 3828)
--repetitions N   timings of each (default: 40)
"""
_STEP = """
--configs YAML    run configs (default: llama_low_noise and ernie_moe)
--steps N         timed steps per clip (default: 200)
"""
_COLLECTIVES = """
--config CONFIG   run config (default: configs/proxy/ernie_moe.yaml)
--layouts LAYOUT  default: all; a wrong name lists them
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = make_parser("benchmark", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    clip = commands.add_parser("clip", help="time of a clip step")
    add_options(
        clip,
        _CLIP,
        lists={"nargs": "*"},
        shares={"nargs": "*", "type": _share, "default": [0.1, 1.0]},
        dtype={
            "action": "store",
            "choices": ["float32", "bfloat16"],
            "default": "float32",
        },
        repetitions={"type": _at_least_two, "default": 15},
    )
    units = commands.add_parser("units", help="time of a clip step on units")
    add_options(
        units, _UNITS, repetitions={"type": _at_least_two, "default": 40}
    )
    host = commands.add_parser("host", help="host time of a clip step")
    add_options(
        host,
        _HOST,
        tensors={"nargs": "*", "type": _at_least_two, "default": [196, 3828]},
        repetitions={"type": _at_least_two, "default": 40},
    )
    step = commands.add_parser("step", help="time of a training step")
    add_options(
        step,
        _STEP,
        configs={"nargs": "*", "type": Path, "default": PROXIES},
        steps={"type": _at_least_two, "default": 200},
    )
    collectives = commands.add_parser(
        "collectives", help="collectives and bytes of a clip step"
    )
    add_options(
        collectives,
        _COLLECTIVES,
        config={"type": Path, "default": ERNIE},
        layouts={"nargs": "*"},
    )
    runs = {
        clip: _clip,
        units: _units,
        host: _host,
        step: _step,
        collectives: _collectives,
    }
    for command, run in runs.items():
        add_options(command, _JSON)
        command.set_defaults(run=run)
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return exit_status(parser, _run, options, (*ERRORS, RuntimeError))


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1]")
    return value


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text} is less than 2")
    return value


def _run(options: argparse.Namespace) -> int:
    check_installed("paddlenlp", "nlp")
    found = options.run(options)
    if options.json:
        print(json.dumps(found, default=dataclasses.asdict, indent=1))
    return 0


def _show(options: argparse.Namespace, *texts: str) -> None:
    """Print tables, unless JSON follows."""
    if not options.json:
        print("\n".join(texts), flush=True)


def _chosen(
    option: str, names: Collection[str] | None, known: Collection[str]
) -> list[str]:
    return [check_choice(option, name, known) for name in names or known]


def _clip(options: argparse.Namespace) -> list[dict[str, Any]]:
    from paddle_adagc.lab.benchmark import clip_step, counts

    found = []
    for name in _chosen("--lists", options.lists, clip_step.LISTS):
        shapes = clip_step.recipe_shapes(name)
        for share in options.shares:
            rows = clip_step.compare(
                shapes, share, options.repetitions, options.dtype
            )
            on_gpu = {
                dtype: counts.count_on_gpu(shapes, share, dtype)
                for dtype in counts.WIDTHS
            }
            found.append(
                {"list": name, "share": share, "times": rows, "gpu": on_gpu}
            )
            _show(
                options,
                f"\n{name}: {rows[0].num_tensors:,} tensors, "
                f"{rows[0].num_values / 1e6:.0f}M values, {share:.0%} of the "
                "tensors clipped\n",
                clip_step.to_markdown(rows),
                counts.gpu_table(on_gpu),
            )
    return found


def _units(options: argparse.Namespace) -> dict[str, Any]:
    from paddle_adagc.lab.benchmark import clip_step

    found = clip_step.compare_units(options.repetitions)
    _show(
        options,
        f"{found['num_tensors']:,} matrices of experts\n",
        f"in {found['num_parameters']} parameters: {found['fused']:.2f} ms",
        f"in as many parameters: {found['apart']:.2f} ms",
        f"ratio: {found['ratio']:.2f}",
    )
    return found


def _host(options: argparse.Namespace) -> dict[int, Any]:
    from paddle_adagc.lab.benchmark import host_time

    found = {
        count: host_time.compare(count, options.repetitions)
        for count in options.tensors
    }
    _show(options, host_time.to_markdown(found))
    return found


def _step(options: argparse.Namespace) -> list[dict[str, Any]]:
    for path in options.configs:
        check_config_file(path)
    from paddle_adagc.lab.benchmark import training_step
    from paddle_adagc.lab.train.parse import load_config

    found = []
    for path in options.configs:
        rows = training_step.compare(load_config(path), options.steps)
        found.append({"config": str(path), "times": rows})
        _show(options, f"\n{path}\n", training_step.to_markdown(rows))
    return found


def _collectives(options: argparse.Namespace) -> list[dict[str, Any]]:
    check_config_file(options.config)
    from paddle_adagc.lab.benchmark import collectives
    from paddle_adagc.lab.train.parse import load_config

    load_config(options.config)  # before the workers, who would not say it
    chosen = _chosen("--layouts", options.layouts, collectives.LAYOUTS)
    rows = collectives.measure(options.config, chosen)
    _show(options, collectives.to_markdown(rows))
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
