# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip step costs on a GPU, by count; nothing here was timed.

Kernel launches and bytes are counted: those of the CUDA backend from the tables
that it launches by, those of Paddle's operators from its kernels
(:mod:`paddle_adagc.kernels.operators`). The time is a model of an H100: its
memory at 3.0 TB/s, and 3 us for each device operation. The slower of the two
rules a step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from paddle_adagc.kernels.cuda.tables import Tables
from paddle_adagc.lab.models.shapes import Shape

BYTES_PER_SECOND = 3.0e12
SECONDS_PER_OPERATION = 3e-6
WIDTHS = {"float32": 4, "bfloat16": 2}
"""Bytes of a value."""

# Of a tensor by operators: device operations, and bytes per value.
_NORM = {"float32": (2, 4), "bfloat16": (3, 10)}
_SCALE = {"float32": (1, 8), "bfloat16": (3, 20)}
_ZERO = {"float32": (1, 8), "bfloat16": (1, 4)}
_RULE_OPERATIONS = 25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """One way to clip one list of tensors."""

    name: str
    operations: int
    """Kernels and copies that the host starts in an adaptive step."""

    bytes_per_value: float

    num_values: int

    @property
    def memory_seconds(self) -> float:
        """Modelled time of the bytes."""
        return self.bytes_per_value * self.num_values / BYTES_PER_SECOND

    @property
    def launch_seconds(self) -> float:
        """Modelled time of the operations."""
        return self.operations * SECONDS_PER_OPERATION


def count(shapes: Sequence[Shape], share: float, dtype: str) -> list[Count]:
    """Count an adaptive step of each backend, and GlobalGC's.

    Args:
        shapes: Of the tensors.
        share: Share of the values that is scaled, in [0, 1].
        dtype: A key of :data:`WIDTHS`.
    """
    sizes = np.array([math.prod(shape) for shape in shapes])
    num_tensors, num_values = len(sizes), int(sizes.sum())
    width = WIDTHS[dtype]
    per_tensor = [_NORM[dtype], _SCALE[dtype], _ZERO[dtype]]
    fused = Tables([dtype] * num_tensors, sizes).num_launches + 1
    rows: list[tuple[str, int, float]] = [
        ("GlobalGC", 3 * num_tensors, 3 * width),
        (
            "AdaGC, operators",
            num_tensors * sum(c for c, _ in per_tensor) + _RULE_OPERATIONS,
            sum(b for _, b in per_tensor),
        ),
        ("AdaGC, CUDA kernels", fused, width * (1 + 2 * share)),
    ]
    return [
        Count(
            name=name,
            operations=operations,
            bytes_per_value=bytes_per_value,
            num_values=num_values,
        )
        for name, operations, bytes_per_value in rows
    ]


def to_markdown(counts: dict[str, list[Count]]) -> str:
    """Pipe table.

    Args:
        counts: Dtype -> what :func:`count` gave.
    """
    lines = [
        "| on a GPU, counted | gradients | device operations | bytes per value "
        "| modelled ms: bytes | launches |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for dtype, rows in counts.items():
        for row in rows:
            lines.append(
                f"| {row.name} | {dtype} | {row.operations:,} | "
                f"{row.bytes_per_value:.1f} | {1e3 * row.memory_seconds:.2f} | "
                f"{1e3 * row.launch_seconds:.2f} |"
            )
    return "\n".join(lines) + "\n"
