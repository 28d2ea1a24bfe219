# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time, memory and operator calls of a clip step, clip against clip."""

from __future__ import annotations

import abc
import dataclasses
import functools
import gc
import itertools
import math
import random
import statistics
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import paddle
from paddle import Tensor, _C_ops
from paddle.base import core
from paddle.nn.clip import _clip_by_global_norm_using_mp_type
from tqdm import tqdm

from paddle_adagc import ClipGradByAdaGC, kernels
from paddle_adagc.kernels.operators import OperatorTensors, dense_float
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.models.families import preset
from paddle_adagc.lab.models.shapes import Shape, parameter_shapes
from paddle_adagc.lab.record.clock import device_seconds
from paddle_adagc.lab.report.formatting import format_quartiles

Pairs = list[tuple[Tensor, Tensor]]
REFERENCE = "GlobalGC"
FLOOR = "memory floor"
LISTS: dict[str, dict[str, Any]] = {
    "ernie-10b-a1.4b": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 256,
        "intermediate_size": 128,
    },
    "llama2-1.3b": {"hidden_size": 1024, "intermediate_size": 2048},
    "llama2-7b": {"hidden_size": 768, "intermediate_size": 2048},
    "qwen3-1.7b": {"hidden_size": 512, "intermediate_size": 1536},
    "mixtral-8x1b": {"hidden_size": 256, "intermediate_size": 704},
}
"""The paper's models: preset -> widths that fit this machine. Layers and
experts, and so the number of tensors, are the full model's."""

_VOCABULARY = 1000
_MIB = 2**20
_VALUES = 32_000_000
_NUM_TENSORS = (10, 100, 1000, 10_000)
_NUM_VALUES = (1_000_000, 8_000_000, 64_000_000)
_SHARES = (0.0, 0.1, 0.5, 1.0)
_FAR = 10.0
"""Gradients have a norm of about 1: thresholds of the tensors left alone."""

_NEAR = 0.8
"""Thresholds of the tensors that are clipped."""


def recipe_shapes(name: str) -> list[Shape]:
    """Shapes of a list of :data:`LISTS`, without the routers.

    As the paper counts tensors: ERNIE's list has 3,828.
    """
    config = preset(name, vocab_size=_VOCABULARY, **LISTS[name])
    return [
        shape
        for key, shape in parameter_shapes(config).items()
        if not key.endswith("mlp.gate.weight")
    ]


def equal_shapes(num_tensors: int, num_values: int) -> list[Shape]:
    """As many square tensors of about the same number of values in all."""
    side = max(1, round(math.sqrt(num_values / num_tensors)))
    return [(side, side)] * num_tensors


def make_pairs(shapes: Iterable[Shape], dtype: str = "float32") -> Pairs:
    """Parameters, and random gradients of these shapes, each of norm about 1.

    Parameters are small: no clip but AGC looks at their values.
    """
    paddle.seed(0)
    zero = paddle.nn.initializer.Constant(0.0)
    return [
        (
            paddle.create_parameter([1], "float32", default_initializer=zero),
            (paddle.randn(shape) / math.sqrt(math.prod(shape))).astype(dtype),
        )
        for shape in shapes
    ]


class Contender(abc.ABC):
    """One way to clip gradients of norm about 1; the ``clipped`` are scaled."""

    name: str

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        self.pairs = pairs
        self.clipped = clipped

    def prepare(self, originals: Sequence[Tensor]) -> None:
        """Before each step, untimed: the gradients as they were.

        An optimizer asks each pair these two questions right before it calls
        its clip: so Python's objects are in the processor's cache, values not.
        """
        for (_, gradient), original in zip(self.pairs, originals, strict=True):
            paddle.assign(original, gradient)
        for parameter, gradient in self.pairs:
            parameter.stop_gradient, gradient.is_selected_rows()

    @abc.abstractmethod
    def step(self) -> Any:
        """Make the step that is timed."""


class AdaGC(Contender):
    """ClipGradByAdaGC in its adaptive phase."""

    name = "AdaGC"

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        model = paddle.nn.ParameterList([parameter for parameter, _ in pairs])
        self._clip = ClipGradByAdaGC(t_start=0)
        self._clip.bind(model)
        gamma = np.where(clipped, _NEAR, _FAR)
        keys = [name for name, _ in model.named_parameters()]
        self._state = {
            "step": 1,
            "gamma": dict(zip(keys, gamma, strict=True)),
            "config": {},
        }

    def prepare(self, originals: Sequence[Tensor]) -> None:
        """Also the thresholds of the first step."""
        self._clip.set_state_dict(self._state)
        super().prepare(originals)

    def step(self) -> Any:
        return self._clip(self.pairs)


class AdaGCByOperators(AdaGC):
    """The same through Paddle's operators alone, as without a compiler."""

    name = "AdaGC, operators only"

    def step(self) -> Any:
        with mock.patch.object(kernels, "BACKENDS", (OperatorTensors,)):
            return super().step()


class ByNorm(Contender):
    """Paddle's ``ClipGradByNorm``: a fixed threshold per tensor."""

    name = "ClipGradByNorm"
    _kind: Any = paddle.nn.ClipGradByNorm

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        self._clip = self._kind(_NEAR)

    def step(self) -> Any:
        return self._clip(self.pairs)


class GlobalGC(ByNorm):
    """Paddle's ``ClipGradByGlobalNorm``, which scales every tensor.

    It has no 16-bit norms on a CPU: there by Paddle's own switch to float32.
    """

    name = REFERENCE
    _kind = paddle.nn.ClipGradByGlobalNorm

    def step(self) -> Any:
        previous = _clip_by_global_norm_using_mp_type(True)
        try:
            return super().step()
        finally:
            _clip_by_global_norm_using_mp_type(previous)


class WaitingLoop(Contender):
    """A loop that asks the device for every tensor's norm in every step.

    As the ``ClipGradByAdaptiveNorm`` of Paddle's develop branch does.
    """

    name = "loop that waits per tensor"

    def step(self) -> Any:
        """Norm, comparison on the host, scaling where it is needed."""
        for (_, gradient), is_clipped in zip(
            self.pairs, self.clipped, strict=True
        ):
            norm = _C_ops.squared_l2_norm(dense_float(gradient)).sqrt()
            threshold = _NEAR if is_clipped else _FAR
            if norm > threshold:
                gradient.multiply_((threshold / norm).astype(gradient.dtype))


class MemoryFloor(Contender):
    """One read of all gradients, one read-write of those that are clipped.

    Over one contiguous block each, by BLAS (``dot``) and NumPy, as float32.
    """

    name = FLOOR

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        sizes = np.array([int(np.prod(g.shape)) for _, g in pairs])
        # Two 16-bit values are as many bytes as one of float32.
        share = pairs[0][1].element_size() / 4
        self._all = np.ones(int(share * sizes.sum()), np.float32)
        self._part = self._all[: int(share * sizes[clipped].sum())]

    def step(self) -> Any:
        np.dot(self._all, self._all)
        np.multiply(self._part, np.float32(1.0), out=self._part)


CONTENDERS: tuple[type[Contender], ...] = (
    MemoryFloor,
    AdaGC,
    AdaGCByOperators,
    GlobalGC,
    ByNorm,
    WaitingLoop,
)


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
    (:mod:`paddle_adagc.lab.benchmark.counts`)."""

    peak_bytes: int
    """Paddle's memory on the device in a step, above what it held before."""


def compare(
    shapes: Sequence[Shape],
    clipped_share: float,
    repetitions: int,
    dtype: str = "float32",
) -> list[Row]:
    """Time all contenders on one list, interleaved, in one process.

    ``clipped_share`` of the tensors is scaled. One repetition more comes first
    and is not counted.
    """
    pairs = make_pairs(shapes, dtype)
    originals = [gradient.clone() for _, gradient in pairs]
    clipped = np.zeros(len(pairs), bool)
    clipped[: round(clipped_share * len(pairs))] = True
    np.random.default_rng(0).shuffle(clipped)
    # Paddle has no kernel for ByNorm in 16 bits on a CPU.
    is_able = dtype == "float32" or paddle.device.get_device() != "cpu"
    contenders = {
        kind.name: kind(pairs, clipped)
        for kind in CONTENDERS
        if is_able or kind is not ByNorm
    }
    rounds = tqdm(range(repetitions + 1), leave=False, unit="round")
    seconds = take_turns(contenders, (originals for _ in rounds), 1)
    return [
        Row(
            contender=name,
            num_tensors=len(pairs),
            num_values=sum(map(math.prod, shapes)),
            clipped_share=clipped_share,
            seconds=tuple(seconds[name]),
            of_reference=ratios(seconds[name], seconds[REFERENCE]),
            of_floor=ratios(seconds[name], seconds[FLOOR]),
            operator_calls=_operator_calls(contender, originals),
            peak_bytes=_peak_bytes(contender, originals),
        )
        for name, contender in contenders.items()
    ]


def compare_units(repetitions: int) -> dict[str, float]:
    """Time AdaGC on experts in two parameters per layer, and on them apart.

    28 layers of 64 experts, as ERNIE 10B-A1.4B has, of smaller widths. Medians
    in ms, from turns in one run.
    """
    stacks = [[64, 48, 32], [64, 16, 48]] * 28
    fused = [paddle.create_parameter(shape, "float32") for shape in stacks]
    apart = [
        paddle.create_parameter(shape[1:], "float32")
        for shape in stacks
        for _ in range(shape[0])
    ]
    contenders = {}
    for name, parameters in (("fused", fused), ("apart", apart)):
        clip: Any = ClipGradByAdaGC(t_start=0)
        units = {".": "experts"} if name == "fused" else None
        clip.bind(paddle.nn.ParameterList(parameters), units)
        pairs = [(p, paddle.ones(p.shape)) for p in parameters]
        contenders[name] = types.SimpleNamespace(
            prepare=lambda _: None, step=functools.partial(clip, pairs)
        )
    times = take_turns(contenders, range(repetitions + 3), 3)
    first, second = (1e3 * statistics.median(times[x]) for x in times)
    return {
        "num_tensors": len(apart),
        "num_parameters": len(fused),
        "fused": first,
        "apart": second,
        "ratio": first / second,
    }


def take_turns(
    contenders: Mapping[str, Any], rounds: Iterable[Any], num_untimed: int
) -> dict[str, list[float]]:
    """Time one step of each contender in every round, in random order.

    Python's garbage collector runs before, and not within. Each contender has
    ``prepare``, which is given the round, and, timed, ``step``. The first
    ``num_untimed`` rounds do not count. Gives name -> seconds of each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for number, given in enumerate(rounds):
            for name in order.sample([*contenders], len(contenders)):
                contenders[name].prepare(given)
                begin = device_seconds()
                contenders[name].step()
                elapsed = device_seconds() - begin
                if number >= num_untimed:
                    seconds[name].append(elapsed)
    finally:
        gc.enable()
    return seconds


def ratios(mine: list[float], theirs: list[float]) -> tuple[float, ...]:
    """Divide round by round."""
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
    is_cpu = paddle.device.get_device() == "cpu"
    stat = "host_memory_stat" if is_cpu else "device_memory_stat"
    before = getattr(core, f"{stat}_current_value")("Allocated", 0)
    getattr(core, f"{stat}_reset_peak_value")("Allocated", 0)
    result = contender.step()
    peak = getattr(core, f"{stat}_peak_value")("Allocated", 0)
    del result
    return max(peak - before, 0)


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
    """How the times grow, as a pipe table.

    With the number of tensors and of values at 10% of the tensors clipped, and
    with that share.
    """
    cases = itertools.chain(
        (("tensors", equal_shapes(n, _VALUES), 0.1) for n in _NUM_TENSORS),
        (("values", equal_shapes(1000, n), 0.1) for n in _NUM_VALUES),
        (("share", equal_shapes(1000, _VALUES), s) for s in _SHARES),
    )
    lines = []
    for what, shapes, share in cases:
        rows = compare(shapes, share, repetitions)
        size = f"{rows[0].num_values / 1e6:.1f}M"
        count = f"{rows[0].num_tensors:,}"
        times = [f"{1e3 * statistics.median(r.seconds):.1f}" for r in rows]
        lines.append([what, count, size, f"{share:.0%}", *times])
    names = [kind.name for kind in CONTENDERS]
    head = ["grows", "tensors", "values", "clipped", *names]
    return markdown_table(head, lines) + "\nMedians in ms.\n"
