# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time, memory and operator calls of a clip step, clip against clip."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import paddle
from paddle import Tensor
from paddle.base import core
from tqdm import tqdm

from paddle_adagc.lab.benchmark.contenders import CONTENDERS, Contender
from paddle_adagc.lab.benchmark.tensor_lists import equal_shapes, make_pairs
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.models.shapes import Shape
from paddle_adagc.lab.record.clock import device_seconds
from paddle_adagc.lab.report.formatting import format_quartiles

REFERENCE = "GlobalGC"
FLOOR = "memory floor"
_MIB = 2**20
_VALUES = 32_000_000
_NUM_TENSORS = (10, 100, 1000, 10_000)
_NUM_VALUES = (1_000_000, 8_000_000, 64_000_000)
_SHARES = (0.0, 0.1, 0.5, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One contender's result on one list of tensors."""

    contender: str
    num_tensors: int
    num_values: int
    clipped_share: float
    seconds: tuple[float, ...]
    """One per repetition."""

    of_reference: tuple[float, ...]
    """Ratio to GlobalGC's time, repetition by repetition."""

    of_floor: tuple[float, ...]
    """Ratio to the memory floor's time, repetition by repetition."""

    operator_calls: int
    """Paddle operators called in a step; on a GPU one may be several launches
    (:mod:`paddle_adagc.lab.benchmark.gpu_counts`)."""

    peak_bytes: int
    """Paddle's memory on the device in a step, above what it held before."""

    @property
    def median_seconds(self) -> float:
        """Median over the repetitions."""
        return statistics.median(self.seconds)


def compare(
    shapes: Sequence[Shape],
    clipped_share: float,
    repetitions: int,
    contenders: Iterable[type[Contender]] = CONTENDERS,
    dtype: str = "float32",
) -> list[Row]:
    """Time all contenders on one list, interleaved, in one process.

    In every repetition each contender makes one step, in an order of its own,
    on the same gradients, which are restored in between.

    Args:
        shapes: Of the tensors.
        clipped_share: Share of the tensors that is scaled, in [0, 1].
        repetitions: At least 2; one more comes first and is not counted.
        contenders: GlobalGC and the memory floor among them.
        dtype: Of the gradients.
    """
    pairs = make_pairs(list(shapes), dtype)
    originals = [gradient.clone() for _, gradient in pairs]
    clipped = np.zeros(len(pairs), bool)
    clipped[: round(clipped_share * len(pairs))] = True
    np.random.default_rng(0).shuffle(clipped)
    taking_part = [make(pairs, clipped) for make in contenders]

    seconds = _time(taking_part, originals, repetitions)
    rows = []
    for contender in taking_part:
        mine = seconds[contender.name]
        rows.append(
            Row(
                contender=contender.name,
                num_tensors=len(pairs),
                num_values=sum(int(np.prod(shape)) for shape in shapes),
                clipped_share=clipped_share,
                seconds=tuple(mine),
                of_reference=_ratios(mine, seconds[REFERENCE]),
                of_floor=_ratios(mine, seconds[FLOOR]),
                operator_calls=_operator_calls(contender, originals),
                peak_bytes=_peak_bytes(contender, originals),
            )
        )
    return rows


def to_markdown(rows: Sequence[Row]) -> str:
    """Pipe table, a line per contender."""
    head = ["clip", "ms, median (quartiles)", "of GlobalGC"]
    head += ["of the memory floor", "operator calls", "peak memory (MiB)"]
    return markdown_table(
        head,
        [
            (
                row.contender,
                format_quartiles([1e3 * s for s in row.seconds], ".1f"),
                f"{statistics.median(row.of_reference):.2f}",
                f"{statistics.median(row.of_floor):.2f}",
                f"{row.operator_calls:,}",
                f"{row.peak_bytes / _MIB:.1f}",
            )
            for row in rows
        ],
    )


def growth(repetitions: int) -> str:
    """How the times grow, a pipe table each.

    With the number of tensors and of values at 10% of the tensors clipped, and
    with that share.
    """
    cases = [
        *(("tensors", equal_shapes(n, _VALUES), 0.1) for n in _NUM_TENSORS),
        *(("values", equal_shapes(1000, n), 0.1) for n in _NUM_VALUES),
        *(("share", equal_shapes(1000, _VALUES), s) for s in _SHARES),
    ]
    names = [kind.name for kind in CONTENDERS]
    lines = []
    for what, shapes, share in cases:
        rows = compare(shapes, share, repetitions)
        times = [f"{1e3 * row.median_seconds:.1f}" for row in rows]
        size = f"{rows[0].num_values / 1e6:.1f}M"
        count = f"{rows[0].num_tensors:,}"
        lines.append([what, count, size, f"{share:.0%}", *times])
    head = ["grows", "tensors", "values", "clipped", *names]
    return markdown_table(head, lines) + "\nMedians in ms.\n"


def _time(
    contenders: Sequence[Contender],
    originals: Sequence[Tensor],
    repetitions: int,
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    order = random.Random(0)
    rounds = tqdm(range(repetitions + 1), leave=False, unit="round")
    with no_garbage_collection():
        for repetition in rounds:
            for contender in order.sample(contenders, len(contenders)):
                contender.prepare(originals)
                begin = device_seconds()
                contender.step()
                elapsed = device_seconds() - begin
                if repetition:
                    seconds[contender.name].append(elapsed)
    return seconds


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector runs before, and not within."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _ratios(mine: list[float], theirs: list[float]) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(mine, theirs, strict=True))


def _operator_calls(contender: Contender, originals: Sequence[Tensor]) -> int:
    """Paddle's own count of kernels called in one step."""
    contender.prepare(originals)
    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    core.clear_low_precision_op_list()
    try:
        contender.step()
        calls = core.get_low_precision_op_list()
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
    return sum(int(n) for counts in calls.values() for n in counts.split(","))


def _peak_bytes(contender: Contender, originals: Sequence[Tensor]) -> int:
    contender.prepare(originals)
    if paddle.device.get_device() == "cpu":
        stat = "host_memory_stat"
    else:
        stat = "device_memory_stat"
    before = getattr(core, f"{stat}_current_value")("Allocated", 0)
    getattr(core, f"{stat}_reset_peak_value")("Allocated", 0)
    result = contender.step()
    peak = getattr(core, f"{stat}_peak_value")("Allocated", 0)
    del result
    return max(peak - before, 0)
