# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measured times of clips and steps, and the plan's prediction of GPU hours."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paddle_adagc.files import atomic_write, atomic_write_json
from paddle_adagc.lab.reproduce.grid import TimingConfig, digest
from paddle_adagc.lab.reproduce.results import ExperimentResult, RunResult
from paddle_adagc.lab.reproduce.running import commit, run_until
from paddle_adagc.lab.train.parse import load_config

PLAN = "plan"
"""Name of the experiment that holds the plan's predictions."""

_CLIPS = ("GlobalGC", "AdaGC", "AdaGC, operators only", "memory floor")


def run_timing(
    timing: TimingConfig, grid_file: Path, store: Path
) -> ExperimentResult:
    """Time it in a process of its own, if that has not been done.

    Nothing else should run meanwhile. Measurements are kept in ``store``.
    """
    facts = dataclasses.asdict(timing)
    if timing.config is not None:
        config = grid_file.parent / timing.config
        facts |= {"path": str(config), "run": load_config(config).to_dict()}
    key = digest({k: v for k, v in facts.items() if k != "path"})
    measured = store / f"timing-{key}.json"
    if not measured.exists():
        store.mkdir(parents=True, exist_ok=True)
        specification = store / f"timing-{key}.in.json"
        atomic_write(specification, json.dumps(facts, default=str))
        log_file = store / f"timing-{key}.log"
        module = "paddle_adagc.lab.reproduce.timing"
        with log_file.open("ab") as log:
            code = run_until(
                ["-m", module, str(specification), str(measured)],
                threading.Event(),
                log,
            )
        if code != 0:
            raise RuntimeError(
                f"timing {timing.name!r} failed (exit status {code}); see "
                f"{log_file}"
            )
    return _as_result(timing, key, json.loads(measured.read_text()))


def gpu_hours() -> ExperimentResult:
    """Put the paper's GPU hours beside the plan's for its layouts.

    Nothing is run: the clips' collectives are counted and their time modelled,
    see :mod:`paddle_adagc.lab.plan.costs`.
    """
    from paddle_adagc.lab.models.families import preset
    from paddle_adagc.lab.models.shapes import model_size
    from paddle_adagc.lab.plan.costs import Interconnect, compare

    runs = []
    for prediction in compare(Interconnect()):
        run = prediction.run
        size = model_size(preset(run.preset))
        saved = run.global_gc_hours - run.adagc_hours
        runs.append(
            RunResult(
                method=f"{run.model}, {prediction.layout}",
                seed=0,
                commit=commit(),
                measures={
                    "paper_global_gc_hours": run.global_gc_hours,
                    "paper_adagc_hours": run.adagc_hours,
                    "paper_hours_saved": saved,
                    "predicted_hours_saved": prediction.hours_saved,
                    "predicted_percent_of_saved": (
                        100 * prediction.hours_saved / saved
                    ),
                    "gamma_percent_of_weights": (
                        100 * size.gamma_bytes / (2 * size.parameters)
                    ),
                    "global_gc_us": prediction.global_gc_us,
                    "adagc_us": prediction.adagc_us,
                    "adagc_minus_global_gc_us": (
                        prediction.adagc_us - prediction.global_gc_us
                    ),
                },
            )
        )
    return ExperimentResult(
        name=PLAN,
        title="GPU hours: the paper's, and what the plan predicts",
        description=(
            "The plan counts what both clips communicate in the paper's "
            "layouts and models how long that takes on H100 nodes; the paper's "
            '"DP" may be plain data parallelism, or sharding of whole tensors '
            "(V1) or of slices (V2). Nothing was run on a GPU."
        ),
        all_runs=runs,
    )


def measure(specification: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Measure in this process: measure -> method -> a number per repetition.

    The specification has the fields of a :class:`TimingConfig`, and the
    ``path`` of its config.
    """
    repetitions = specification["repetitions"]
    if specification["tensors"] is not None:
        from paddle_adagc.lab.benchmark import clip_step
        from paddle_adagc.lab.benchmark.clip_step import recipe_shapes

        shapes = recipe_shapes(specification["tensors"])
        rows = clip_step.compare(shapes, 0.1, repetitions)
        return {
            "clip_ms": {
                row.contender: [1e3 * seconds for seconds in row.seconds]
                for row in rows
                if row.contender in _CLIPS
            }
        }
    from paddle_adagc.lab.benchmark import training_step

    steps = specification["steps"]
    config = load_config(specification["path"])
    seconds = training_step.compare(config, steps * repetitions)
    found: dict[str, dict[str, list[float]]] = {
        "step_ms": {},
        "percent_of_global_gc": {},
    }
    for clip, mine in seconds.items():
        ratios = [a / b for a, b in zip(mine, seconds["GlobalGC"], strict=True)]
        for name, values, factor in (
            ("step_ms", mine, 1e3),
            ("percent_of_global_gc", ratios, 100),
        ):
            found[name][clip] = [
                factor * statistics.median(values[start : start + steps])
                for start in range(0, steps * repetitions, steps)
            ]
    return found


def _as_result(
    timing: TimingConfig, key: str, measured: dict[str, Any]
) -> ExperimentResult:
    values = measured["measures"]
    methods: Sequence[str] = list(next(iter(values.values())))
    ordered = sorted(methods, key=lambda method: method != "GlobalGC")
    return ExperimentResult(
        name=timing.name,
        title=timing.title,
        description=(
            "Clip steps on gradients with the tensors of the full model at "
            "smaller widths, a tenth of the tensors clipped; a repetition is a "
            "step of every clip in turn."
            if timing.tensors
            else "Training steps of copies of one model, one clip each, in "
            f"turn on the same batches; a repetition is the median of "
            f"{timing.steps} steps."
        ),
        all_runs=[
            RunResult(
                method=method,
                seed=repetition,
                key=key,
                commit=measured["commit"],
                versions=measured["versions"],
                timings={"elapsed_seconds": measured["elapsed_seconds"]},
                measures={
                    name: float(f"{values[name][method][repetition]:.6g}")
                    for name in values
                },
            )
            for repetition in range(timing.repetitions)
            for method in ordered
        ],
    )


def main(specification: str, output: str) -> None:
    """Measure as a file says and write another one."""
    import paddle

    import paddle_adagc

    begin = time.monotonic()
    facts = {
        "measures": measure(json.loads(Path(specification).read_text())),
        "elapsed_seconds": time.monotonic() - begin,
        "commit": commit(),
        "versions": {
            "paddle_adagc": paddle_adagc.__version__,
            "paddlepaddle": paddle.__version__,
            "python": platform.python_version(),
        },
    }
    atomic_write_json(output, facts, indent=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
