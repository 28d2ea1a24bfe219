# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measured times of clips and steps, and the plan's prediction of GPU hours."""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adagc_lab.committed import SINGLE, rounded
from adagc_lab.reproduce.grid import TimingConfig, digest
from adagc_lab.reproduce.results import ExperimentResult, RunResult
from adagc_lab.reproduce.running import commit
from adagc_lab.train.config import RunConfig
from adagc_lab.train.parse import load_config
from paddle_adagc.files import atomic_write_json

PLAN = "plan"
"""Name of the experiment that holds the plan's predictions."""

_CLIPS = ("GlobalGC", "AdaGC", "AdaGC, operators only", "memory floor")


def run_timing(
    timing: TimingConfig, grid_file: Path, store: Path
) -> ExperimentResult:
    """Time it on one thread; what ``store`` has is not measured again."""
    facts, config = dataclasses.asdict(timing), None
    if timing.config is not None:
        config = load_config(grid_file.parent / timing.config)
        facts["run"] = config.to_dict()
    key = digest(facts)
    file = store / f"timing-{key}.json"
    if not file.exists():
        import paddle

        import paddle_adagc

        paddle.base.core.set_num_threads(1)
        begin = time.monotonic()
        measured = {
            "measures": _measures(timing, config),
            "elapsed_seconds": time.monotonic() - begin,
            "commit": commit(),
            "versions": {
                "paddle_adagc": paddle_adagc.__version__,
                "paddlepaddle": paddle.__version__,
                "python": platform.python_version(),
            },
        }
        store.mkdir(parents=True, exist_ok=True)
        atomic_write_json(file, measured, indent=None)
    return _as_result(timing, key, json.loads(file.read_text()))


def gpu_hours() -> ExperimentResult:
    """Put the paper's GPU hours beside the plan's; nothing is run."""
    from adagc_lab.benchmark.gpu_hours import compare
    from adagc_lab.models.families import preset
    from adagc_lab.models.shapes import model_size

    runs = []
    for prediction in compare():
        run = prediction.run
        size = model_size(preset(run.preset))
        saved = run.global_gc_hours - run.adagc_hours
        measures = {
            "paper_global_gc_hours": run.global_gc_hours,
            "paper_adagc_hours": run.adagc_hours,
            "paper_hours_saved": saved,
            "predicted_hours_saved": prediction.hours_saved,
            "predicted_percent_of_saved": 100 * prediction.hours_saved / saved,
            "gamma_percent_of_weights": (
                100 * size.gamma_bytes / (2 * size.parameters)
            ),
            "global_gc_us": prediction.global_gc_us,
            "adagc_us": prediction.adagc_us,
            "adagc_minus_global_gc_us": (
                prediction.adagc_us - prediction.global_gc_us
            ),
        }
        name = f"{run.model}, {prediction.layout}"
        runs.append(
            RunResult(method=name, seed=0, commit=commit(), measures=measures)
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


def _measures(
    timing: TimingConfig, config: RunConfig | None
) -> dict[str, dict[str, list[float]]]:
    """Return measure -> method -> a number per repetition."""
    if config is None:
        from adagc_lab.benchmark import clip_step

        shapes = clip_step.recipe_shapes(str(timing.tensors))
        rows = clip_step.compare(shapes, 0.1, timing.repetitions)
        return {
            "clip_ms": {
                row.contender: [1e3 * seconds for seconds in row.seconds]
                for row in rows
                if row.contender in _CLIPS
            }
        }
    from adagc_lab.benchmark import training_step

    num_steps = timing.repetitions * timing.steps
    seconds = {
        clip: np.reshape(own, (timing.repetitions, timing.steps))
        for clip, own in training_step.compare(config, num_steps).items()
    }
    reference = seconds["GlobalGC"]
    return {
        "step_ms": {
            clip: (1e3 * np.median(own, axis=1)).tolist()
            for clip, own in seconds.items()
        },
        "percent_of_global_gc": {
            clip: (100 * np.median(own / reference, axis=1)).tolist()
            for clip, own in seconds.items()
        },
    }


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
                timings={
                    "elapsed_seconds": round(measured["elapsed_seconds"], 2)
                },
                measures={
                    name: rounded(values[name][method][repetition], SINGLE)
                    for name in values
                },
            )
            for repetition in range(timing.repetitions)
            for method in ordered
        ],
    )
