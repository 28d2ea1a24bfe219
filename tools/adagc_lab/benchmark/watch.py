# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time that a record adds to a clip's step."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from adagc_lab.benchmark.clip_step import (
    Contender,
    make_pairs,
    median_ratio,
    recipe_shapes,
    take_turns,
)
from adagc_lab.markdown import markdown_table
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record

ALONE = {
    "AdaGC, recorded": "AdaGC",
    "GlobalGC, watched": "GlobalGC",
    "no clip, watched": "no clip",
}
"""What is timed -> what it is compared with."""

_T_START = 3

_NUM_STEPS = 64
"""Steps of a ring, after which a record copies them to the host."""


class _NoUpdate(paddle.optimizer.SGD):
    """An optimizer that clips and then changes nothing."""

    def _create_optimization_pass(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []


def compare(name: str, num_rings: int) -> dict[str, list[float]]:
    """Time steps in turn, in a random order within each step.

    Args:
        name: List of tensors, see :data:`.clip_step.LISTS`.
        num_rings: Copies to the host: each has 64 steps.

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

    def restore(originals: Sequence[Tensor]) -> None:
        for parameter, original in zip(parameters, originals, strict=True):
            paddle.assign(original, parameter.grad)

    rounds = itertools.repeat(originals, (1 + num_rings) * _NUM_STEPS)
    with _steps(parameters) as steps:
        turns = {name: Contender(step, restore) for name, step in steps.items()}
        seconds = take_turns(turns, rounds, _NUM_STEPS)  # the first warms up
    return {
        name: np.reshape(mine, [num_rings, _NUM_STEPS]).mean(axis=1).tolist()
        for name, mine in seconds.items()
    }


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
    """Table of the medians, and of each ratio to the clip alone."""
    rows = []
    for name, mine in seconds.items():
        ratio = median_ratio(mine, seconds[ALONE.get(name, name)])
        ms = 1e3 * statistics.median(mine)
        rows.append((name, f"{ms:.2f}", f"{ratio:.3f}"))
    return markdown_table(["step", "ms", "of the clip alone"], rows)
