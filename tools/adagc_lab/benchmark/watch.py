# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time that a record adds to a clip's step."""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from adagc_lab.benchmark.clip_step import make_pairs, recipe_shapes
from adagc_lab.markdown import markdown_table
from adagc_lab.record.clock import device_seconds
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record
from paddle_adagc.watch.command import make_page
from paddle_adagc.watch.measure import add_numbers
from paddle_adagc.watch.page import write_page
from paddle_adagc.watch.recorder import NUM_STEPS
from paddle_adagc.watch.ring import Steps
from paddle_adagc.watch.store import MAX_BYTES
from paddle_adagc.watch.writer import Writer

ALONE = {
    "AdaGC, recorded": "AdaGC",
    "GlobalGC, watched": "GlobalGC",
    "no clip, watched": "no clip",
}
"""What is timed -> what it is compared with."""

_T_START = 3
_MOST_WAITING = 512  # steps


class _NoUpdate(paddle.optimizer.SGD):
    """An optimizer that clips and then changes nothing."""

    def _create_optimization_pass(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []


def compare(name: str, num_rings: int) -> dict[str, list[float]]:
    """Time steps in turn, in a random order within each step.

    Args:
        name: List of tensors, see :data:`.clip_step.LISTS`.
        num_rings: Copies to the host: each has :data:`NUM_STEPS` steps.

    Returns:
        Seconds of a step by what was done, the mean of each ring: its copy,
        and what is judged and written then, is part of it.
    """
    shapes = recipe_shapes(name)
    zero = paddle.nn.initializer.Constant(0.0)
    parameters = [
        paddle.create_parameter(shape, "float32", default_initializer=zero)
        for shape in shapes
    ]
    gradients = [gradient for _, gradient in make_pairs(shapes)]
    originals = [gradient.clone() for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    with _steps(parameters) as steps:
        found: dict[str, list[float]] = {name: [] for name in steps}
        for ring in itertools.count():
            sums = dict.fromkeys(steps, 0.0)
            for _ in range(NUM_STEPS):
                for name in random.sample([*steps], len(steps)):
                    for parameter, original in zip(
                        parameters, originals, strict=True
                    ):
                        paddle.assign(original, parameter.grad)
                    start = device_seconds()
                    steps[name]()
                    sums[name] += device_seconds() - start
            if ring:  # the first warms up
                for name, total in sums.items():
                    found[name].append(total / NUM_STEPS)
            if ring == num_rings:
                return found
    raise AssertionError


@contextmanager
def _steps(parameters: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
    """Give a function for each thing that is timed."""
    clips: dict[str, Any] = {
        "AdaGC": lambda: ClipGradByAdaGC(t_start=_T_START),
        "GlobalGC": lambda: paddle.nn.ClipGradByGlobalNorm(1.0),
        "no clip": lambda: None,
    }
    loss = paddle.ones([])
    steps: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        records = []
        for name, clip in clips.items():
            steps[name] = _NoUpdate(
                parameters=parameters, grad_clip=clip()
            ).step
        for place, (name, plain) in enumerate(ALONE.items()):
            optimizer = _NoUpdate(
                parameters=parameters, grad_clip=clips[plain]()
            )
            record = Record(f"{folder}/{place}", optimizer)
            records.append(record)

            def step(optimizer: Any = optimizer, mine: Any = record) -> None:
                optimizer.step()
                mine.step(loss)

            steps[name] = step
        yield steps
        for record in records:
            record.close()


def to_markdown(seconds: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for name, mine in seconds.items():
        other = seconds[ALONE.get(name, name)]
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        rows.append(
            (
                name,
                f"{1e3 * statistics.median(mine):.2f}",
                f"{statistics.median(ratios):.3f}",
            )
        )
    return markdown_table(["step", "ms", "of the clip alone"], rows)


def simulate(num_tensors: int, num_steps: int) -> dict[str, float]:
    """Record steps of random norms, with an event of 20 steps; make its page.

    Returns:
        Bytes of the record, and seconds to write it, for the page and the text.
    """
    rng = np.random.default_rng(0)
    keys = [f"layers.{i // 7}.part{i % 7}.weight" for i in range(num_tensors)]
    scale = np.exp(rng.normal(0, 1, num_tensors)).astype("float32")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder), 1, {}, MAX_BYTES)
        for first in range(1, num_steps + 1, NUM_STEPS):
            steps = np.arange(first, min(first + NUM_STEPS, num_steps + 1))
            shape = (len(steps), num_tensors)
            norm = rng.standard_normal(shape, "float32")
            norm = scale * np.exp(norm * np.float32(0.1))
            norm[abs(steps - num_steps // 2) < 10] *= 30
            loss = 2 + rng.normal(0, 0.02, len(steps))
            rows: list[dict[str, Any]] = [
                {"step": step, "loss": x, "learning_rate": 1e-4}
                for step, x in zip(steps.tolist(), loss.tolist(), strict=True)
            ]
            tensors = {
                "norm": norm,
                "gamma": norm / 2,
                "h": np.minimum(1, 2 / norm),
            }
            part = Steps(rows, keys, tensors)
            add_numbers(part, None)
            while writer.num_waiting > _MOST_WAITING:
                time.sleep(0.01)
            writer.put(part, is_ours=True)
        writer.close({"kind": "finished", "time": time.time()}, 600)
        seconds = {"to write": time.perf_counter() - begin}
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        begin = time.perf_counter()
        page = make_page(Path(folder))
        write_page(Path(folder, "page.html"), [page])
        seconds["page"] = time.perf_counter() - begin
        assert page["events"], "the event was not found"
    return {"bytes": size, **seconds}


def size_to_markdown(found: Mapping[str, float]) -> str:
    """Return one row: the size of a record, and seconds."""
    row = (
        f"{found['bytes'] / 1e6:.0f} MB",
        f"{found['to write']:.0f} s",
        f"{found['page']:.1f} s",
    )
    return markdown_table(["record", "written in", "page in"], [row])
